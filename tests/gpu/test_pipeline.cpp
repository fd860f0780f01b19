// Everything together: append, copy out, reuse, fetch through a ring, attend, merge.
#include "tests/gpu/device_test.hpp"
#include "tests/gpu/pipeline.hpp"

namespace kvtier::test {
namespace {

TEST_P(device_test, a_pipeline_with_all_its_waits_is_right) {
  const pipeline work(1);
  const auto device = open(pipeline::kv_bytes_needed);
  EXPECT_TRUE(work.is_right(work.run(*device)));
  EXPECT_TRUE(work.is_right(work.run(*device))) << "second run on the same device";
}

}  // namespace
}  // namespace kvtier::test
