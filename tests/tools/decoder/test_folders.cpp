#include "tests/tools/decoder/test_folders.hpp"

namespace kvtier::test {

std::filesystem::path tests_folder() { return std::filesystem::path(KVTIER_SOURCE_DIR) / "tests"; }

std::filesystem::path needle_folder() { return tests_folder() / "data/needle"; }

std::filesystem::path decoder_goldens() { return tests_folder() / "golden/decoder"; }

}  // namespace kvtier::test
