/// Which torch it is, and how the user wants it called.
#include "exchange/routes/torch_symbols.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "exchange/python.h"

namespace interop::exchange {
namespace {

// Minor versions of torch 2 whose private functions interop was tested with.
constexpr int kTestedMinors[] = {11, 13, 14};

const Lookup kVersion("torch", "__version__");

}  // namespace

TorchVersion torch_version() {
  TorchVersion version{text_of(kVersion.get())};
  std::sscanf(version.text.c_str(), "%d.%d", &version.major, &version.minor);
  return version;
}

bool is_tested(const TorchVersion& version) {
  return version.major == 2 &&
         std::find(std::begin(kTestedMinors), std::end(kTestedMinors), version.minor) != std::end(kTestedMinors);
}

std::string torch_choice(const char* variable) {
  const char* const given = std::getenv(variable);
  std::string asked = given ? given : "";
  if (!asked.empty() && asked != "shim" && asked != "python") {
    throw ValueError(std::string(variable) + " is '" + asked + "'; accepted: 'shim', 'python', or nothing");
  }
  return asked;
}

void refuse_choice(const char* variable, const TorchVersion& version) {
  throw ValueError(std::string(variable) + " is 'shim', which was not tested with torch " + version.text +
                   "; accepted: 'python', or nothing");
}

}  // namespace interop::exchange
