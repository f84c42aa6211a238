/// Functions of torch's own libraries, found by their symbols. Where they are private, they are called in the minor
/// versions alone that interop was tested with.
#pragma once

#ifdef __linux__
#include <dlfcn.h>
#endif

#include <string>

namespace interop::exchange {

/// A library of torch's, which is loaded already. Never closed: torch is never unloaded.
class TorchLibrary {
 public:
  explicit TorchLibrary(const char* name) : handle_(open(name)) {}

  template <class Function>
  bool find(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address(symbol));
    return function != nullptr;
  }

 private:
#ifdef __linux__
  static void* open(const char* name) { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD); }
  void* address(const char* symbol) const { return handle_ ? dlsym(handle_, symbol) : nullptr; }
#else
  static void* open(const char*) { return nullptr; }
  void* address(const char*) const { return nullptr; }
#endif

  void* handle_;
};

struct TorchVersion {
  std::string text;
  int major = 0, minor = 0;
};
TorchVersion torch_version();

/// Were the private functions of this version tested?
bool is_tested(const TorchVersion& version);

/// The value of an environment variable that chooses how torch is called: 'shim', 'python' or nothing. Throws
/// ValueError for others.
std::string torch_choice(const char* variable);
/// Throws the ValueError of 'shim' where it cannot be had.
[[noreturn]] void refuse_choice(const char* variable, const TorchVersion& version);

}  // namespace interop::exchange
