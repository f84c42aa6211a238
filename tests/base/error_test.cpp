/// Tests of <interop/error.h>.
#include <gtest/gtest.h>
#include <interop/error.h>

namespace {

using interop::of_call;

TEST(OfCall, NamesTheFunctionThatFailed) {
  EXPECT_EQ(of_call("interop.add", false, "interop: no GPU"), "interop.add: no GPU");
}

TEST(OfCall, SaysThatExecutionAskedForTheGpu) {
  EXPECT_EQ(of_call("interop.add", true, "interop: no GPU"), "interop.add: execution='cuda': no GPU");
}

TEST(OfCall, LeavesWordsThatNameAFunction) {
  EXPECT_EQ(of_call("interop.add", true, "interop.matmul: no GPU"), "interop.matmul: no GPU");
}

}  // namespace
