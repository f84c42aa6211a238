/// One call of an operation on arrays: the arrays, the device they are on, the stream the work goes on, the library
/// that gets the result. Everything else is a function of it.
#pragma once

#include <interop/cuda/driver.h>
#include <interop/error.h>
#include <interop/operand.h>

#include <initializer_list>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace interop {

struct Argument {
  const char* name;
  nanobind::handle object;
  bool is_written = false;        ///< the call writes to it too, as to `out`
  bool may_be_out = false;        ///< `out` may be this very array, element for element
  bool takes_conjugated = false;  ///< a lazily conjugated view is read as it is: `Operand::conjugated` says so
};

/// What the caller said beside the arrays; each may be None.
struct CallOptions {
  nanobind::handle out;        ///< an array to write the result to
  nanobind::handle stream;     ///< where to queue the work
  nanobind::handle execution;  ///< "cuda" or "cuda:N": compute host arrays on that GPU
  bool only_looks = false;     ///< for `explain`: decide all, but copy, allocate and queue nothing
  bool may_overlap = false;    ///< `out` may share memory with an argument: the operation sees to what that means
  bool takes_scalars = false;  ///< a 0-d host array may join device arrays, and is left where it is: its value is read
};

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
  static constexpr int kInside = 6;
  alignas(Operand) unsigned char inside_[kInside * sizeof(Operand)];
  Operand* at_;
  int count_ = 0;
};

/// A call reads every argument, decides, makes the result, launches, and hands over:
///
///     Call call("interop.row_sum", {{"x", x}}, {out, stream, execution});
///     const auto result = ops::row_sum_result(call.tensor(0));
///     const DLTensor& y = call.output(result.shape, result.dtype);
///     const RowSum plan = ops::plan_row_sum(call.tensor(0), y);
///     call.launch([&](cudaStream_t s) { cuda::row_sum(plan, s); });
///     return call.hand_over();
///
/// An error before `launch` leaves every array as it was: at most a stream waits for an event. The GIL is held, except
/// inside `launch`.
class Call {
 public:
  /// Reads the arguments and orders the call's stream behind them (if it `only_looks`, not: what shows itself only when
  /// it is exported, is). Throws TypeError, ValueError, BufferError or CudaError, naming the argument.
  Call(const char* function, std::initializer_list<Argument> arguments, const CallOptions& options)
      : Call(function, arguments.begin(), static_cast<int>(arguments.size()), options) {}
  Call(const char* function, const Argument* arguments, int count, const CallOptions& options);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Host arrays, to be computed by NumPy on `numpy(i)` and `numpy_output()`.
  bool on_host() const { return device_ < 0; }
  /// The CUDA device of the call, current for its lifetime.
  int device() const { return device_; }
  cudaStream_t stream() const { return stream_; }

  /// Argument `i`, in the order given; `out` comes after the last.
  const DLTensor& tensor(int i) const { return operands_[i].tensor; }
  nanobind::object numpy(int i) const;
  /// All that is known of argument `i`, for `explain`.
  const Operand& operand(int i) const { return operands_[i]; }
  int operand_count() const { return operand_count_; }
  StreamChoice stream_choice() const { return stream_choice_; }
  /// Host arrays, computed on the GPU because `execution` asks for it.
  bool staged() const { return staged_; }
  bool has_out() const { return has_out_; }
  /// The stream of another library that argument `i` must be joined with; null if there is none.
  cudaStream_t other_stream(int i) const;
  /// Is argument `i` kept until the work is done?
  bool holds(int i) const;

  /// The array to write: `out` after checks, or a new one of the caller's library.
  /// Throws ValueError for a shape beyond all memory, for an `out` of another shape, or one that overlaps itself or
  /// (unless `may_overlap` was said) an argument; TypeError for another dtype or a read-only one.
  const DLTensor& output(const Shape& shape, DLDataType dtype);
  nanobind::object numpy_output() const;
  /// NumPy computes for another library: its floating-point warnings are not that library's.
  bool led_by_numpy() const;

  /// Device memory for this call alone, from the caller's allocator; null for 0 bytes.
  void* workspace(std::size_t bytes);

  /// Runs `queue(stream)` without the GIL; it must queue its work on the stream and return.
  template <class Queue>
  void launch(Queue&& queue) {
    const nanobind::gil_scoped_release no_gil;
    queue(stream_);
  }

  /// Orders the other libraries behind the work, keeps what must be kept until it is done, and returns the result.
  nanobind::object hand_over();

 private:
  void inspect(const Argument* arguments, int count, nanobind::handle out);
  void choose_device(nanobind::handle execution);
  void choose_stream(nanobind::handle stream);
  void acquire();
  void join(cudaStream_t other);
  const Operand* find_device_operand();
  void join_host_operand(Operand& operand, const Operand& on_device);
  void stage();
  void unstage();
  void* device_copy(std::size_t bytes);
  void check_out(const Shape& shape, DLDataType dtype);
  void check_written(const Operand& written) const;
  void check_overlap() const;
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
  StreamChoice stream_choice_ = StreamChoice::none;
  cudaStream_t stream_ = nullptr;
  std::optional<cuda::DeviceGuard> guard_;
  std::vector<cudaStream_t> joined_;  // other libraries' streams: they wait for the work in turn

  nanobind::object result_;   // null where `out` is given
  DLTensor result_tensor_{};  // the array that the caller gets
  DLTensor output_{};         // what the kernel writes: the same, but for staged calls
  Shape output_shape_;
  int64_t output_strides_[kMaxDims];
  nanobind::object workspace_;
  std::vector<std::shared_ptr<void>> device_copies_;             // of staged host arrays
  std::vector<std::pair<int, nanobind::object>> staged_writes_;  // written arguments, and NumPy's views of them
};

}  // namespace interop
