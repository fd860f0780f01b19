#include "cpu/slab.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "cpu/topology.hpp"

namespace kvtier::cpu {
namespace {

using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<slab> && !std::is_copy_assignable_v<slab>);
static_assert(std::is_nothrow_move_constructible_v<slab> &&
              std::is_nothrow_move_assignable_v<slab>);
static_assert(std::is_base_of_v<std::bad_alloc, slab_error>);

bool all_zero(const slab& memory) {
  const auto bytes = memory.bytes();
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

TEST(slab, is_aligned_zeroed_and_as_large_as_asked) {
  for (const std::size_t bytes : {1u, 4096u, 3u << 20, (2u << 20) + 1}) {
    const slab memory(bytes, {});
    EXPECT_EQ(memory.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % (2u << 20), 0u);
    EXPECT_TRUE(all_zero(memory));
    memory.bytes().back() = std::byte{7};
  }
}

TEST(slab, of_nothing_is_empty) {
  const slab none(0, {});
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_TRUE(slab().bytes().empty());
}

TEST(slab, moves_and_leaves_an_empty_one) {
  slab first(4096, {});
  first.data()[5] = std::byte{9};
  const std::byte* where = first.data();
  slab second = std::move(first);
  EXPECT_EQ(second.data(), where);
  // What a moved-from slab holds is what this test is about.
  // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(first.data(), nullptr);
  slab third(8192, {});
  third = std::move(second);
  EXPECT_EQ(third.data(), where);
  EXPECT_EQ(third.data()[5], std::byte{9});
  EXPECT_EQ(third.size(), 4096u);
  // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(second.size(), 0u);
}

TEST(slab, that_cannot_be_mapped_names_the_bytes) {
  for (const std::size_t bytes : {std::size_t{1} << 60, ~std::size_t{0}}) {
    try {
      const slab memory(bytes, {});
      FAIL() << "mapped " << memory.size();
    } catch (const slab_error& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(bytes)));
    }
  }
}

TEST(slab, goes_to_any_node_that_exists) {
  for (const numa_node& node : detect_topology().nodes) {
    const slab memory(4096, {static_cast<std::int32_t>(node.os_index), false, false});
    EXPECT_TRUE(all_zero(memory));
  }
}

TEST(slab, refuses_a_node_that_is_no_index) {
  try {
    const slab memory(4096, {-5, true, true});
    FAIL() << "placed " << memory.size();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("-5"));
  }
}

}  // namespace
}  // namespace kvtier::cpu
