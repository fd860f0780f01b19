"""The check of README.md finds what it is there for."""

import sys
import unittest

import readme_example

FILES = {"a.cpp": "int main() {}\n"}
GOOD = "# Title\n\n<!-- example: a.cpp -->\n```cpp\nint main() {}\n```\n\nText.\n"


def problems(text):
    return list(readme_example.problems(text, FILES.__getitem__))


class readme_example_test(unittest.TestCase):
    def test_equal_block_is_accepted(self):
        self.assertEqual(problems(GOOD), [])

    def test_changed_block_is_found(self):
        changed = GOOD.replace("int main() {}", "int main() { return 0; }")
        self.assertEqual(len(problems(changed)), 1)
        self.assertIn("a.cpp differs", problems(changed)[0])

    def test_update_makes_them_equal_and_leaves_the_rest(self):
        changed = GOOD.replace("int main() {}", "old\nlines")
        self.assertEqual(readme_example.update(changed, FILES.__getitem__), GOOD)

    def test_missing_block_and_marker_without_block_are_found(self):
        self.assertEqual(len(problems("# Title\n```cpp\nint main() {}\n```\n")), 1)
        self.assertEqual(len(problems(GOOD + "<!-- example: a.cpp -->\nno code\n")), 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
