/// What stands behind `interop::Call` of <interop/call.h>: c_api.cpp makes C functions of it.
#pragma once

#include <interop/c_api.h>
#include <interop/cuda/driver.h>
#include <interop/error.h>

#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "exchange/operand.h"
#include "exchange/staging.h"

namespace interop::exchange {

/// Why a call goes on its stream.
enum class StreamChoice {
  none,     ///< a host call
  given,    ///< `stream=`
  own,      ///< interop's own, as neither the first array nor its library names one
  named,    ///< named by the first array itself
  library,  ///< the current one of the first array's library
  legacy    ///< the legacy default stream, as nothing is known
};

/// The operands of one call: made one by one, never moved. For a few there is room without an allocation.
class OperandList {
 public:
  explicit OperandList(int most)
      : at_(static_cast<Operand*>(most <= kInside ? static_cast<void*>(inside_)
                                                  : ::operator new(sizeof(Operand) * static_cast<std::size_t>(most)))) {
  }
  ~OperandList() {
    while (count_ > 0) at_[--count_].~Operand();
    if (static_cast<void*>(at_) != inside_) ::operator delete(at_);
  }
  OperandList(const OperandList&) = delete;
  OperandList& operator=(const OperandList&) = delete;

  Operand& add() { return *new (at_ + count_++) Operand; }
  Operand& operator[](int i) { return at_[i]; }
  const Operand& operator[](int i) const { return at_[i]; }

 private:
  static constexpr int kInside = 16;
  alignas(Operand) unsigned char inside_[kInside * sizeof(Operand)];
  Operand* at_;
  int count_ = 0;
};

/// See interop::Call. Throws TypeError, ValueError, BufferError, CudaError or the Python error.
class Call {
 public:
  Call(const char* function, const InteropArgument* arguments, int count, const InteropOptions& options);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const char* function() const { return function_; }
  bool on_host() const { return device_ < 0; }
  /// The CUDA device of the call, current for its lifetime.
  int device() const { return device_; }
  cudaStream_t stream() const { return stream_; }

  /// Argument `i`, in the order given; `out` comes after the last.
  const DLTensor& tensor(int i) const { return operands_[i].tensor; }
  nanobind::object numpy(int i);
  int argument_count() const { return argument_count_; }
  /// All that is known of argument `i`, for `explain`.
  const Operand& operand(int i) const { return operands_[i]; }
  int operand_count() const { return operand_count_; }
  StreamChoice stream_choice() const { return stream_choice_; }
  /// Host arrays, computed on the GPU because `execution` asks for it.
  bool staged() const { return staged_; }
  /// The copy of an argument on the device, in a staged call.
  struct Copied {
    int of = 0;  // the first argument that is the same array
    bool is_sent = false;
    bool is_fetched = false;
  };
  /// Those of all arguments, until they are made: an argument that has been copied says no more where it was.
  std::vector<Copied> copies() const;
  bool has_out() const { return has_out_; }
  /// The stream of another library that argument `i` must be joined with; null if there is none.
  cudaStream_t other_stream(int i) const;
  /// Is argument `i` kept until the work is done?
  bool holds(int i) const;

  const DLTensor& output(const Shape& shape, DLDataType dtype);
  int result_count() const { return result_count_; }
  /// Result `i`, once it has been asked for.
  const DLTensor& made(int i) const { return result(i).output; }
  nanobind::object numpy_output(int i);
  /// Throws what interop::Call::view throws.
  void check(int i, const InteropConstraint& constraint) const;

  /// Memory where the call computes, for it alone, from the caller's allocator; null for 0 bytes.
  void* workspace(std::size_t bytes);

  /// Orders the other libraries behind the work, keeps what must be kept until it is done, and returns the result.
  nanobind::object hand_over();

 private:
  /// One array that the call makes, or `out`.
  struct Result {
    nanobind::object object;  // null where it is `out`
    DLTensor tensor{};        // the array that the caller gets
    DLTensor output{};        // what the kernel writes: the same, but for staged calls
    Shape shape;
    int64_t strides[kMaxDims];
  };
  /// A host array that a staged call writes to, with gaps between its elements: `compact` is fetched in its place, and
  /// copied to it on the host.
  struct Strided {
    nanobind::object array, compact;
  };

  void find_routes(const InteropArgument* arguments, nanobind::handle out);
  void inspect(const InteropArgument* arguments, int count, nanobind::handle out);
  void choose_device(nanobind::handle execution);
  void enter_device();
  void choose_stream(nanobind::handle stream);
  void acquire();
  void join(cudaStream_t other);
  const Operand* find_device_operand();
  void join_host_operand(Operand& operand, const Operand& on_device);
  void stage();  // those of staged calls: staging.cpp
  void stage(Operand& operand, const Copied& copied);
  void unstage();
  void check_copies() const;
  bool is_out(int i) const { return has_out_ && i == 0; }
  const Result& result(int i) const { return i == 0 ? first_ : *others_[i - 1]; }
  void check_out(const Shape& shape, DLDataType dtype);
  void check_overlap(const Operand& written) const;
  const Operand& lead() const { return operands_[0]; }

  const char* function_;
  OperandList operands_;
  int argument_count_ = 0;
  int operand_count_ = 0;  // the arguments, then `out` if there is one
  bool has_out_ = false;
  int device_ = -1;      // -1: a host call
  bool staged_ = false;  // host arrays, computed on the GPU because `execution` asked for it
  bool stream_given_ = false;
  bool only_looks_ = false;
  bool may_overlap_ = false;
  bool takes_scalars_ = false;
  bool below_autograd_ = false;
  StreamChoice stream_choice_ = StreamChoice::none;
  cudaStream_t stream_ = nullptr;
  std::optional<cuda::DeviceGuard> guard_;
  std::vector<cudaStream_t> joined_;  // other libraries' streams: they wait for the work in turn

  Result first_;
  std::vector<std::unique_ptr<Result>> others_;
  int result_count_ = 0;
  std::vector<nanobind::object> workspaces_;
  std::vector<Strided> strided_;
  std::unique_ptr<Staging> staging_;  // of a staged call
};

/// May nobody write to argument `i` of a call, as C has it?
bool is_read_only(const InteropCall& call, int i);

}  // namespace interop::exchange
