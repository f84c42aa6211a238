/// One argument of a call: a view of an array's memory, and what keeps that memory alive.
#pragma once

#include <interop/tensor.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

typedef struct CUstream_st* cudaStream_t;

namespace interop::exchange {

class Route;

/// Runs once, with the GIL, when an imported array is given back to its producer.
using Release = std::unique_ptr<void, void (*)(void*)>;

/// An array that interop has made a view of, of a library that counts writes.
struct Shown {
  const Route* route;
  nanobind::object array;
  int64_t count = 0;  ///< the number of writes to it, before the call
};

/// An array of any library as the call sees it. Made and filled by its `exchange::Route`; never moves, since `tensor`
/// points into it.
struct Operand {
  const char* function = "";     ///< the public function, for messages: "interop.matmul"
  const char* name = "";         ///< the parameter: "a", "out"
  nanobind::handle object;       ///< the caller's object, alive for the whole call
  const Route* route = nullptr;  ///< how its type is read
  DLTensor tensor{};             ///< complete once the call is made; the device is known before that
  int64_t shape[kMaxDims];
  int64_t strides[kMaxDims];      ///< in elements, always filled
  bool is_output = false;         ///< the call writes to it
  bool is_read = true;            ///< its values before the call matter
  bool may_be_out = false;        ///< `out` may be this very array, element for element
  bool takes_conjugated = false;  ///< a lazily conjugated view is read as it is
  bool conjugated = false;        ///< its elements are the conjugates of what lies in memory
  bool read_only = false;
  bool below_autograd = false;            ///< a tensor of torch is taken as its memory, whatever torch notes of it
  bool may_have_tangent = false;          ///< torch's forward mode is active
  bool any_device = false;                ///< empty, with no pointer that would name its device
  unsigned uses = 0;                      ///< of an interop.Array: how many the call's stream has waited for
  bool hold = false;                      ///< its memory is not ordered on the call's stream: hold it until done there
  bool has_stream = false;                ///< `stream` is set: the array itself names the stream it is ready on
  cudaStream_t stream = nullptr;          ///< never 0: the legacy default stream is 1
  nanobind::object exported;              ///< what a registered library exports in place of `object`
  const Route* exported_route = nullptr;  ///< how that is read
  bool temporary = false;                 ///< nobody but the operand holds `exported`
  nanobind::object resolved;              ///< what stands in for `object` where that itself cannot be read
  std::vector<Shown> shown;               ///< other arrays on its memory, if it is written to
  std::shared_ptr<void> kept;             ///< the memory of an `interop.Array`, which is not resized meanwhile
  nanobind::object view;                  ///< `interop.Array` on host memory, which has `release` from then on
  const char* copied = nullptr;           ///< why `resolved` has other memory than `object`; null if it has the same
  Release release{nullptr, [](void*) {}};

  Operand() = default;
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  bool on_host() const { return tensor.device.device_type == kDLCPU; }
  /// The object whose memory `tensor` is.
  nanobind::handle memory() const { return resolved.is_valid() ? nanobind::handle(resolved) : object; }
  /// The same, where `object` belongs to a registered library; and the route that read it.
  nanobind::handle source() const {
    return exported.is_valid() && !resolved.is_valid() ? nanobind::handle(exported) : memory();
  }
  const Route* source_route() const { return exported_route ? exported_route : route; }
  /// "interop.matmul: a", the beginning of a message about this argument.
  std::string label() const { return std::string(function) + ": " + name; }
};

}  // namespace interop::exchange
