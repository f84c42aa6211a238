/// A function of arrays that runs without Python: for the arrays of every library, and inside `jax.jit`. Header-only,
/// for nanobind modules.
///
///     #include <interop/function.h>
///
///     void row_sum(const interop::Run& run) {
///       const auto x = run.view<const float, 2>(0);
///       const auto sums = run.view<float, 1>(1);
///       run.on_host() ? row_sum_on_host(x, sums) : row_sum_on_gpu(x, sums, run.stream());
///     }
///
///     NB_MODULE(_core, m) {
///       interop::initialize();
///       interop::define<row_sum>(m, "package.row_sum", "interop::View<const float, 2> x, interop::View<float, 1>
///       sums");
///     }
#pragma once

#include <interop/api.h>
#include <interop/mdspan.h>
#include <interop/view.cuh>

#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

typedef struct CUstream_st* cudaStream_t;

namespace interop {

/// The arguments of one run, by their place in the declaration, and where it works. Neither Python nor nanobind may be
/// used in it: the GIL is not held, and XLA calls it on threads of its own.
class Run {
 public:
  explicit Run(const InteropRun& run) : run_(run) {}

  /// Are the arrays on the host? Then there is no stream, and the results are there on return.
  bool on_host() const { return run_.device < 0; }
  /// The CUDA device, which is current.
  int device() const { return run_.device; }
  /// Where the work is to be queued; null on the host.
  cudaStream_t stream() const { return static_cast<cudaStream_t>(run_.stream); }

  /// An array. One that is declared as a pointer is C-contiguous, and its strides may be null.
  const DLTensor& tensor(int i) const { return *run_.arrays[i]; }
  /// The memory of an array.
  template <class T>
  T* data(int i) const {
    return static_cast<T*>(element<T>(i).data);
  }
  /// An array that is declared as a view. Throws ValueError for another view than the declaration says.
  template <class T, int ndim>
  View<T, ndim> view(int i) const {
    const DLTensor& x = element<T>(i);
    if (x.ndim != ndim || !x.strides)
      throw ValueError("parameter " + std::to_string(i) + " is declared as another view");
    View<T, ndim> view;
    view.data = static_cast<T*>(x.data);
    for (int d = 0; d < ndim; ++d) {
      view.sizes[d] = x.shape[d];
      view.strides[d] = x.strides[d];
    }
    return view;
  }
  /// An array that is declared as an mdspan, or as a view: see <interop/mdspan.h>. Throws TypeError for elements of
  /// another type, and ValueError for another form. Where the elements are `const` in the declaration alone, the array
  /// is not to be written to.
  template <class Mdspan>
  Mdspan mdspan(int i) const {
    return as_mdspan<Mdspan>(tensor(i), "parameter " + std::to_string(i));
  }
  /// A number, of the type that is declared.
  template <class Number>
  Number number(int i) const {
    Number value;
    std::memcpy(&value, run_.numbers[i], sizeof value);
    return value;
  }

 private:
  template <class T>
  const DLTensor& element(int i) const {
    const DLTensor& x = tensor(i);
    if (x.dtype.bits != 8 * sizeof(T)) {
      throw ValueError("parameter " + std::to_string(i) + " is declared with elements of another size");
    }
    return x;
  }

  const InteropRun& run_;
};

namespace detail {

template <auto function>
int32_t run(const InteropRun* run, char* message, size_t bytes) {
  const auto failed = [&](InteropError kind, const char* what) {
    std::snprintf(message, bytes, "%s", what);
    return static_cast<int32_t>(kind) + 1;
  };
  try {
    function(Run(*run));
    return 0;
  } catch (const TypeError& error) {
    return failed(INTEROP_TYPE_ERROR, error.what());
  } catch (const ValueError& error) {
    return failed(INTEROP_VALUE_ERROR, error.what());
  } catch (const BufferError& error) {
    return failed(INTEROP_BUFFER_ERROR, error.what());
  } catch (const CudaError& error) {
    return failed(INTEROP_CUDA_ERROR, error.what());
  } catch (const std::exception& error) {
    return failed(INTEROP_VALUE_ERROR, error.what());
  } catch (...) {
    return failed(INTEROP_VALUE_ERROR, "unknown C++ exception");
  }
}

}  // namespace detail

/// Adds an `interop.CompiledFunction` to the module, by the last part of `name`, which is that of messages. The
/// parameters are declared as those of a kernel are: pointers, which take C-contiguous arrays, views, and numbers.
/// `graph_safe`: all that the function does on a GPU is to queue work on the stream, the same for the same arguments,
/// so that XLA may record it into a CUDA graph, and replay that.
template <void (*function)(const Run&)>
void define(nanobind::module_& m, const char* name, const char* parameters, bool graph_safe = false) {
  if (api().define(m.ptr(), name, parameters, &detail::run<function>, graph_safe) != 0) nanobind::raise_python_error();
}

}  // namespace interop
