#include "tools/run/size_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/run/usage_error.hpp"

namespace kvtier::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(parse_size, takes_bytes_and_units_of_1024) {
  EXPECT_EQ(parse_size("0", "--x"), 0u);
  EXPECT_EQ(parse_size("4096", "--x"), 4096u);
  EXPECT_EQ(parse_size("7B", "--x"), 7u);
  for (const auto* const text : {"4k", "4K", "4kb", "4KB", "4KiB", "4kib"}) {
    EXPECT_EQ(parse_size(text, "--x"), 4096u) << text;
  }
  EXPECT_EQ(parse_size("1.5M", "--x"), 1572864u);
  EXPECT_EQ(parse_size("64GiB", "--x"), std::uint64_t{64} << 30);
  EXPECT_EQ(parse_size("2t", "--x"), std::uint64_t{2} << 40);
  EXPECT_EQ(parse_size(".5k", "--x"), 512u);
}

TEST(parse_size, keeps_large_whole_numbers_exact) {
  EXPECT_EQ(parse_size("9007199254740993", "--x"), 9007199254740993u);
  EXPECT_EQ(parse_size("18446744073709551615", "--x"), UINT64_MAX);
}

TEST(parse_size, names_place_text_and_remedy) {
  for (const auto* const text :
       {"", "k", "12 parsecs", "-1", "1.2.3k", "4kk", "4kbi", "1e3", "0x10", " 4k", "4k ", ".",
        "18446744073709551616", "16777216t", "99999999999.5t", "inf"}) {
    try {
      parse_size(text, "--host-memory");
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const usage_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--host-memory: '" + std::string(text) + "'"));
      EXPECT_THAT(error.what(), HasSubstr("64MiB"));
    }
  }
}

TEST(parse_disk, cuts_at_the_last_colon) {
  const auto share = parse_disk("/mnt/a:b:2G", "--disk");
  EXPECT_EQ(share.directory, "/mnt/a:b");
  EXPECT_EQ(share.bytes, std::uint64_t{2} << 30);
}

TEST(parse_disk, refuses_what_lacks_a_part) {
  EXPECT_THROW(parse_disk("/mnt", "--disk"), usage_error);
  EXPECT_THROW(parse_disk(":4G", "--disk"), usage_error);
  EXPECT_THROW(parse_disk("/mnt:", "--disk"), usage_error);
  EXPECT_THROW(parse_disk("/mnt:lots", "--disk"), usage_error);
}

TEST(parse_index_list, sorts_and_drops_duplicates) {
  EXPECT_THAT(parse_index_list("", 4, "--dense-layers"), IsEmpty());
  EXPECT_THAT(parse_index_list("3,0,3", 4, "--dense-layers"), ElementsAre(0u, 3u));
}

TEST(parse_index_list, refuses_what_is_no_layer) {
  for (const auto* const text : {"4", "0,4", "-1", "0,,1", "a", "0 1", ",", "0,"}) {
    EXPECT_THROW(parse_index_list(text, 4, "--dense-layers"), usage_error) << text;
  }
}

TEST(format_bytes, has_at_most_four_digits_from_10_kib_on) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(10239), "10239 B");
  EXPECT_EQ(format_bytes(10240), "10.0 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{1} << 20), "1.0 MiB");
  EXPECT_EQ(format_bytes((std::uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace kvtier::run
