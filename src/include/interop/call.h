/// One call of an operation on arrays: its arrays, their device, the stream that the work goes on, and the library that
/// gets the result. Header-only, for nanobind modules.
#pragma once

#include <interop/api.h>
#include <interop/mdspan.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

typedef struct CUstream_st* cudaStream_t;

namespace interop {

/// What the call does with an argument, and what it may be. Combine with |.
enum class Access : uint64_t {
  read = 0,
  write = INTEROP_WRITTEN,                      ///< what it held before does not matter
  update = INTEROP_WRITTEN | INTEROP_READ_TOO,  ///< read, then written
  may_be_out = INTEROP_MAY_BE_OUT,              ///< `out` may be this very array, element for element
  takes_conjugated = INTEROP_TAKES_CONJUGATED   ///< a lazily conjugated view is left as it is: see `conjugated`
};

/// An array that a call takes, by the name that messages give it.
struct Argument : InteropArgument {
  Argument() = default;
  Argument(const char* name, nanobind::handle object, Access access = Access::read)
      : InteropArgument{name, object.ptr(), static_cast<uint64_t>(access)} {}
};
static_assert(sizeof(Argument) == sizeof(InteropArgument), "an array of the one is an array of the other");

/// What the caller gave besides the arrays; each object may be None.
struct CallOptions {
  nanobind::handle out;         ///< an array to write the result to
  nanobind::handle stream;      ///< where to queue the work
  nanobind::handle execution;   ///< "cuda" or "cuda:N": compute host arrays on that GPU
  bool only_looks = false;      ///< for `explain`: decide all, but copy, allocate and queue nothing
  bool may_overlap = false;     ///< the operation allows that its results share memory with an argument
  bool takes_scalars = false;   ///< a 0-d host array may join device arrays: its value is read on the host
  bool below_autograd = false;  ///< the caller has seen to gradients, modes and transforms of torch's tensors
};

/// A call reads every argument, decides on device and stream, makes the result, launches, and hands over:
///
///     using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::device::cuda>;
///     using Vector = nb::ndarray<float, nb::ndim<1>, nb::device::cuda>;
///
///     interop::Call call("package.row_sum", {{"x", x}}, {out, stream});
///     const Matrix matrix = call.view<Matrix>(0);
///     const Vector sums = call.output<Vector>({matrix.shape(0)});
///     call.launch([&](cudaStream_t s) { row_sum(matrix.data(), ..., s); });
///     return call.hand_over();
///
/// An error before `launch` leaves every array as it was; at most, a stream has been made to wait for an event. The GIL
/// is held, except inside `launch`. A failure is thrown as `nanobind::python_error`: TypeError, ValueError, BufferError
/// or interop.CudaError, with a message that names the function and the argument.
class Call {
 public:
  /// Reads the arguments, of which there is at least one, and orders the call's stream behind them. With `only_looks`
  /// it orders nothing, and exports an argument only if it can be read in no other way. `function` and the names
  /// outlive the call.
  Call(const char* function, std::initializer_list<Argument> arguments, const CallOptions& options = {})
      : Call(function, arguments.begin(), static_cast<int>(arguments.size()), options) {}
  Call(const char* function, const Argument* arguments, int count, const CallOptions& options) {
    const InteropOptions given{options.out.ptr(), options.stream.ptr(), options.execution.ptr(),
                               (options.only_looks ? INTEROP_ONLY_LOOKS : 0u) |
                                   (options.may_overlap ? INTEROP_MAY_OVERLAP : 0u) |
                                   (options.takes_scalars ? INTEROP_TAKES_SCALARS : 0u) |
                                   (options.below_autograd ? INTEROP_BELOW_AUTOGRAD : 0u)};
    call_ = required(api().call(function, arguments, count, &given));
    function_ = function;
  }
  ~Call() { api().release(call_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Are the arrays on the host? Then there is no stream, and the result is ready on return.
  bool on_host() const { return call_->device < 0; }
  /// The CUDA device of the call, current for its lifetime.
  int device() const { return call_->device; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(call_->stream); }
  /// The library of the first argument, whose arrays the results are: "numpy", "torch".
  const char* library() const { return call_->library; }
  bool has_out() const { return call_->out != nullptr; }
  /// Are these host arrays that are computed on the GPU because `execution` asks for it?
  bool staged() const { return call_->staged != 0; }

  /// Argument `i`, in the order given; `out` comes after the last. Its strides are filled in, its offset is 0.
  const DLTensor& tensor(int i) const { return *call_->arguments[i]; }

  /// Are the values of argument `i`, which has `Access::takes_conjugated`, the conjugates of what lies in memory?
  bool conjugated(int i) const { return api().is_conjugated(call_, i) != 0; }

  /// Argument `i` as an `nb::ndarray`, valid until the call ends. Throws TypeError or ValueError if it has not the
  /// dtype, shape, order and device of the template. `nb::device::cuda` is any memory that the GPU of this call can
  /// use, managed and pinned memory included. An argument that is viewed with elements that are not `const` must have
  /// `Access::write` or `Access::update`.
  template <class Array>
  Array view(int i) const {
    check<Array>(i);
    return as_ndarray<Array>(tensor(i));
  }
  /// Argument `i` as an mdspan, see <interop/mdspan.h>, valid until the call ends. Throws TypeError for another dtype
  /// or memory that the call's GPU cannot use, and ValueError for another form. One with elements that are not `const`
  /// needs `Access::write` or `Access::update`.
  template <class Mdspan>
  Mdspan mdspan(int i) const {
    using Element = typename Mdspan::element_type;
    check(i, {nullptr, dlpack_dtype<std::remove_const_t<Element>>(), static_cast<int32_t>(Mdspan::rank()), 0, 0,
              !std::is_const_v<Element>});
    return as_mdspan<Mdspan>(tensor(i), std::string(function_) + ": argument " + std::to_string(i));
  }
  /// The same check, of a constraint that is known only at run time.
  void check(int i, const InteropConstraint& constraint) const {
    if (api().check(call_, i, &constraint) != 0) nanobind::raise_python_error();
  }

  /// The array to write: `out` after checks (where this is the first result), or a new one of the caller's library.
  /// Throws ValueError for a shape beyond all memory, and for an `out` of another shape, or one that overlaps itself or
  /// (without `may_overlap`) an argument. Throws TypeError for an `out` of another dtype or a read-only one.
  const DLTensor& output(const int64_t* shape, int ndim, DLDataType dtype) {
    ++outputs_;
    return *required(api().output(call_, shape, ndim, dtype));
  }
  template <class Shape>  // interop::Shape
  const DLTensor& output(const Shape& shape, DLDataType dtype) {
    return output(shape.sizes, shape.ndim, dtype);
  }
  /// The same as an `nb::ndarray`, with the dtype and the constraints of its template. `out` must meet these, too; a
  /// new array is compact and row-major.
  template <class Array>
  Array output(std::initializer_list<size_t> shape) {
    static_assert(!Array::ReadOnly, "a result is written");
    static_assert(Array::Order != 'F', "a new array is row-major");
    if (shape.size() > kMaxNdim) throw ValueError("interop: a result has more than 64 dimensions");
    int64_t sizes[kMaxNdim];
    int ndim = 0;
    for (const size_t size : shape) sizes[ndim++] = static_cast<int64_t>(size);
    check(0, {nullptr, {}, -1, Array::Config::DeviceType::value, 0, 0});  // the result lies where the arguments do
    const bool is_out = call_->out && outputs_ == 0 && !staged();
    const DLTensor& tensor = output(sizes, ndim, dlpack_dtype<typename Array::Scalar>());
    if (is_out) check<Array>(call_->argument_count);
    return as_ndarray<Array>(tensor);
  }

  /// Memory on the call's device, for this call alone, from the allocator of the caller's library; null for 0 bytes.
  void* workspace(std::size_t bytes) {
    void* memory = nullptr;
    if (api().workspace(call_, bytes, &memory) != 0) nanobind::raise_python_error();
    return memory;
  }

  /// Argument `i`, or the result, of a host call as a NumPy array on the same memory.
  nanobind::object numpy(int i) const { return nanobind::steal(required(api().numpy(call_, i))); }
  nanobind::object numpy_output(int i = 0) const { return nanobind::steal(required(api().numpy_output(call_, i))); }

  /// Runs `queue(stream)` without the GIL; it must queue its work on the stream and return. In a host call it computes,
  /// and the stream is null. A CudaError that `queue` throws is given the name of the call.
  template <class Queue>
  void launch(Queue&& queue) {
    const WithoutGil no_gil;
    try {
      queue(stream());
    } catch (const CudaError& error) {
      throw CudaError(of_call(function_, staged(), error.what()));
    }
  }

  /// What the call would do, for `interop.explain`; once the output has been asked for.
  nanobind::object explain() const { return nanobind::steal(required(api().explain(call_))); }

  /// Orders the other libraries behind the work, keeps alive what the work uses until it is done, and returns the
  /// result: a tuple if there are several, None if there is none.
  nanobind::object hand_over() { return nanobind::steal(required(api().hand_over(call_))); }

 private:
  friend struct CallInC;  // of interop itself

  static constexpr int kMaxNdim = 64;

  /// Once the interpreter is gone, Python before 3.14 does not give the GIL back but ends the thread, by unwinding its
  /// stack. No C++ frame may be unwound then (a destructor would drop a reference): the thread stays here.
  class WithoutGil {
   public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    ~WithoutGil() {
      try {
        PyEval_RestoreThread(state_);
      } catch (...) {
        while (true) std::this_thread::sleep_for(std::chrono::hours(1));
      }
    }
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

   private:
    PyThreadState* state_;
  };

  template <class Pointer>
  static Pointer required(Pointer pointer) {
    if (!pointer) nanobind::raise_python_error();
    return pointer;
  }

  template <class Scalar>
  static DLDataType dlpack_dtype() {
    constexpr auto dtype = nanobind::dtype<Scalar>();
    return {dtype.code, dtype.bits, dtype.lanes};
  }

  template <class Array>
  void check(int i) const {
    using Config = typename Array::Config;
    int64_t shape[Config::N > 0 ? Config::N : 1];
    if constexpr (Config::N > 0) Config::Shape::put(shape);
    check(i, {Config::N > 0 ? shape : nullptr, dlpack_dtype<typename Array::Scalar>(), Config::N,
              Config::DeviceType::value, static_cast<char>(Config::Order::value), !Array::ReadOnly});
  }

  template <class Array>
  static Array as_ndarray(const DLTensor& tensor) {
    static_assert(sizeof(size_t) == sizeof(int64_t), "sizes are 64-bit");
    size_t shape[kMaxNdim];
    std::memcpy(shape, tensor.shape, static_cast<size_t>(tensor.ndim) * sizeof(int64_t));
    constexpr int device_type = Array::Config::DeviceType::value;
    return Array(tensor.data, static_cast<size_t>(tensor.ndim), shape, nanobind::handle(), tensor.strides,
                 {tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes},
                 device_type ? device_type : static_cast<int>(tensor.device.device_type), tensor.device.device_id);
  }

  InteropCall* call_;
  const char* function_;
  int outputs_ = 0;
};

}  // namespace interop
