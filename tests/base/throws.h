/// An assertion that GoogleTest has only with GoogleMock: the type of what a call throws, and a part of its text.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace interop::tests {

/// Does `call` throw an Error whose text holds `part`?
template <typename Error, typename Call>
::testing::AssertionResult throws(const char* part, Call call) {
  try {
    call();
  } catch (const Error& error) {
    if (std::string(error.what()).find(part) != std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "threw \"" << error.what() << "\", without \"" << part << "\"";
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "threw another type: " << error.what();
  }
  return ::testing::AssertionFailure() << "nothing was thrown, and \"" << part << "\" was expected";
}

}  // namespace interop::tests
