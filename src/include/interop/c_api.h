/* The exchange as a table of C functions: how a module of any compiler, with any binding library, reaches the routes,
 * caches and streams of the installed interop. C++ authors use it through <interop/call.h>.
 *
 * Every function is called with the GIL. One that fails returns NULL or -1 with the Python error set: no C++ type and
 * no exception crosses. Structures that interop makes (InteropCall, InteropApi) may grow at their end within a version;
 * those that the module makes do not.
 */
#ifndef INTEROP_C_API_H_
#define INTEROP_C_API_H_

#include <Python.h>
#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* PyCapsule_Import(INTEROP_API_CAPSULE, 0) is the table, an InteropApi that lives as long as the process. */
#define INTEROP_API_CAPSULE "interop._core._c_api"
/* Raised by a change that breaks modules; a module refuses a table of another version. */
#define INTEROP_API_VERSION 1

/* One array of a call. */
typedef struct InteropArgument {
  const char* name; /* for messages; it outlives the call, as `object` does */
  PyObject* object;
  uint64_t flags;
} InteropArgument;
#define INTEROP_WRITTEN 1u          /* the call writes to it: a read-only or immutable one is refused */
#define INTEROP_READ_TOO 2u         /* ... and reads what it held before */
#define INTEROP_MAY_BE_OUT 4u       /* `out` may be this very array, element for element */
#define INTEROP_TAKES_CONJUGATED 8u /* a lazily conjugated view is left as it is: is_conjugated tells */

/* What the caller gave besides the arrays: NULL is None. */
typedef struct InteropOptions {
  PyObject* out;       /* an array to write the first result to */
  PyObject* stream;    /* where to queue the work */
  PyObject* execution; /* "cuda" or "cuda:N": compute host arrays on that GPU */
  uint64_t flags;
} InteropOptions;
#define INTEROP_ONLY_LOOKS 1u     /* decide all, but copy, allocate and queue nothing */
#define INTEROP_MAY_OVERLAP 2u    /* what is written may share memory with an argument */
#define INTEROP_TAKES_SCALARS 4u  /* a 0-d host array may join device arrays, and stays where it is */
#define INTEROP_BELOW_AUTOGRAD 8u /* the caller has seen to gradients, modes and transforms of torch's tensors */

/* A call, to be read between `call` and `release`. */
typedef struct InteropCall {
  const DLTensor* const* arguments; /* in the order given, then `out` if there is one; strides are filled in */
  const DLTensor* out;              /* NULL if there is none */
  const char* library;              /* of the first argument, whose arrays the results are: "torch" */
  void* stream;                     /* a CUstream; NULL for a host call */
  int32_t device;                   /* the CUDA device, current until the release; -1 for a host call */
  int32_t argument_count;           /* without `out` */
  int32_t staged;                   /* 1: host arrays, computed on the GPU because `execution` asks for it */
} InteropCall;

/* What an argument must be. */
typedef struct InteropConstraint {
  const int64_t* shape; /* `ndim` sizes, -1 for any; or NULL */
  DLDataType dtype;     /* 0 bits for any */
  int32_t ndim;         /* -1 for any */
  int32_t device_type;  /* kDLCUDA: memory that a GPU call uses; kDLCPU: that of a host call; 0 for any */
  char order;           /* 'C', 'F', 'A' for either of them; 0 for any strides */
  uint8_t writable;     /* 1 to write to it: the call must have been told INTEROP_WRITTEN */
} InteropConstraint;

/* One run of a function that `define` has been given: without the GIL, on any thread. */
typedef struct InteropRun {
  const DLTensor* const* arrays; /* by parameter; NULL for a number. Strides may be NULL, but of views */
  const void* const* numbers;    /* by parameter: the value of its type; NULL for an array */
  void* stream;                  /* a CUstream, where the work is to be queued; NULL on the host */
  int32_t device;                /* the CUDA device, which is current; -1 on the host */
} InteropRun;
/* Returns 0, or 1 + an InteropError, and then puts what is wrong into `message`, of so many bytes. */
typedef int32_t (*InteropFunction)(const InteropRun* run, char* message, size_t bytes);

typedef enum InteropError {
  INTEROP_TYPE_ERROR = 0,
  INTEROP_VALUE_ERROR = 1,
  INTEROP_BUFFER_ERROR = 2,
  INTEROP_CUDA_ERROR = 3 /* interop.CudaError */
} InteropError;

typedef struct InteropApi {
  uint32_t version; /* INTEROP_API_VERSION */
  uint32_t bytes;   /* the size of the table: functions beyond it are absent */

  /* Reads the arguments, of which there is at least one, and orders the call's stream behind them. `function` is the
   * public name, for messages: "package.row_sum". */
  InteropCall* (*call)(const char* function, const InteropArgument* arguments, int32_t count,
                       const InteropOptions* options);
  /* Ends a call, on its thread, whatever became of it. */
  void (*release)(InteropCall* call);
  /* Does argument `i` meet the constraint? */
  int (*check)(InteropCall* call, int32_t i, const InteropConstraint* constraint);
  /* 1 where the values of argument `i` are the conjugates of what lies in memory. */
  int (*is_conjugated)(const InteropCall* call, int32_t i);
  /* The next result: `out` after checks if it is given and this is the first, else a new array of the call's library.
   * Compact and row-major unless it is `out`. Valid until the release. */
  const DLTensor* (*output)(InteropCall* call, const int64_t* shape, int32_t ndim, DLDataType dtype);
  /* Memory on the call's device, for this call alone, from the allocator of the caller's library; NULL in `memory` for
   * 0 bytes. */
  int (*workspace)(InteropCall* call, size_t bytes, void** memory);
  /* Argument `i`, or result `i`, of a host call as a NumPy array on the same memory. New references. */
  PyObject* (*numpy)(InteropCall* call, int32_t i);
  PyObject* (*numpy_output)(InteropCall* call, int32_t i);
  /* What the call would do, as a dict; for INTEROP_ONLY_LOOKS, once the output has been asked for. */
  PyObject* (*explain)(InteropCall* call);
  /* Once the work is queued: orders the other libraries behind it, keeps alive what it uses until it is done, and
   * returns the result: a tuple if there are several, None if there is none. */
  PyObject* (*hand_over)(InteropCall* call);
  /* Sets the Python error of a kind. */
  void (*set_error)(InteropError kind, const char* message);
  /* Makes an interop.CompiledFunction of a function, and puts it into the module by the last part of `name`, which is
   * that of messages: "package.row_sum". `parameters` declares it, as the signature of a kernel does. `graph_safe`: all
   * that it does on a GPU is to queue work on the stream, the same for the same arguments. 0, or -1. */
  int (*define)(PyObject* module, const char* name, const char* parameters, InteropFunction function,
                int32_t graph_safe);

  /* Memory that is of no call: `type` is kDLCPU, kDLCUDAHost (pinned) or kDLCUDAManaged; the host's where this machine
   * has no GPU. At a multiple of 64 bytes, also for 0 bytes. */
  void* (*allocate)(size_t bytes, int32_t type);
  /* Gives it back, behind what is queued by now on the default stream, blocking streams and interop's own. Any thread,
   * with or without the GIL. */
  void (*deallocate)(void* memory);
  /* Of which type it is; kDLCPU for memory that is not of `allocate`. */
  int32_t (*memory_type)(const void* memory);
} InteropApi;

#ifdef __cplusplus
}
#endif

#endif /* INTEROP_C_API_H_ */
