// For NVRTC, which comes without the host's headers. It has size_t itself.
#pragma once
#include "cstddef"
using std::ptrdiff_t;
