#include "tools/eval/markup.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/tools/eval/markup_reader.hpp"

namespace kvtier::eval {
namespace {

TEST(Markup, EscapesWhatMarkupReserves) {
  EXPECT_EQ(escaped("<a href=\"x\" b='y'>&amp;"),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
  EXPECT_EQ(escaped("\xC3\xB4"), "\xC3\xB4");
  EXPECT_EQ(escaped(std::string_view("a\0\x1B\n\x7F", 5)),
            "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Markup, BreaksNamesAfterTheirParts) {
  EXPECT_EQ(breakable("lsh:k=<10>,l=5"), "lsh:<wbr/>k=&lt;10&gt;,<wbr/>l=5");
  EXPECT_EQ(breakable("topk:"), "topk:");
  EXPECT_EQ(breakable(""), "");
}

TEST(Markup, ReaderRefusesWhatIsNotWellFormed) {
  for (const char* const text :
       {"<p>", "<p></b>", "<p>&</p>", "<p a=\"1\" a=\"2\"></p>", "<p a=1></p>", "<p></p><p></p>",
        "<p a=\"<\"></p>", "<p>\x01</p>", "<p></p>text", "</p>", "<p"}) {
    EXPECT_THROW(read_markup(text), std::runtime_error) << text;
  }
  EXPECT_EQ(read_markup("<p a=\"&lt;\">b<i/> &amp; c</p>").front().text, "b & c");
}

TEST(Markup, FiguresHaveThreeDigits) {
  const std::pair<double, const char*> figures[] = {
      {0.0, "0"},
      {1.0, "1.00"},
      {9.996, "10.0"},
      {0.07853, "0.0785"},
      {0.05, "0.0500"},
      {0.0001, "0.000100"},
      {0.00001234, "1.23e-5"},
      {38.0, "38.0"},
      {999.6, "1,000"},
      {12345, "12,300"},
      {999499, "999,000"},
      {1e6, "1.00e6"},
      {-0.25, "-0.250"},
      {-12345, "-12,300"},
      {unknown, "\xE2\x80\x93"},
      {std::numeric_limits<double>::infinity(), "\xE2\x80\x93"}};
  for (const auto& [value, text] : figures) {
    EXPECT_EQ(figure_text(value), text) << value;
  }
}

TEST(Markup, SharesAreInPercent) {
  EXPECT_EQ(percent_text(0.0188), "1.88%");
  EXPECT_EQ(percent_text(1.0), "100%");
  EXPECT_EQ(percent_text(unknown), "\xE2\x80\x93");
  EXPECT_EQ(given_percent_text(0.005), "0.5%");
  EXPECT_EQ(given_percent_text(0.07), "7%");
  EXPECT_EQ(given_percent_text(unknown), "\xE2\x80\x93");
}

TEST(Markup, CountsHaveAllDigits) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(16384), "16,384");
  EXPECT_EQ(count_text(1234567), "1,234,567");
}

TEST(Markup, WrapsAfterSeparators) {
  using lines = std::vector<std::string>;
  EXPECT_EQ(wrapped("topk", 10, 2), lines{"topk"});
  EXPECT_EQ(wrapped("sketch:estimator=ht,bits=1", 20, 3),
            (lines{"sketch:estimator=ht,", "bits=1"}));
  EXPECT_EQ(wrapped("abcdefghij", 4, 3), (lines{"abcd", "efgh", "ij"}));
  EXPECT_EQ(wrapped("abcdefghijklmn", 4, 2), (lines{"abcd", "efg\xE2\x80\xA6"}));
  EXPECT_EQ(wrapped("", 4, 2), lines{""});
}

TEST(Markup, WrapsBetweenCharacters) {
  const std::string accented = "\xC3\xB4\xC3\xB4\xC3\xB4\xC3\xB4\xC3\xB4";
  EXPECT_EQ(character_count(accented), 5U);
  const std::vector<std::string> lines = wrapped(accented, 2, 2);
  EXPECT_EQ(lines, (std::vector<std::string>{"\xC3\xB4\xC3\xB4", "\xC3\xB4\xE2\x80\xA6"}));
}

}  // namespace
}  // namespace kvtier::eval
