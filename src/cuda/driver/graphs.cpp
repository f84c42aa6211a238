/// CUDA graphs: captures of streams, and the graphs that are launched of them.
#include <dlfcn.h>
#include <interop/cuda/graph.h>
#include <interop/error.h>

#include <string>

#include "cuda/driver/driver_api.h"

namespace interop::cuda {
namespace {

/// The functions of the driver that nothing else needs.
struct GraphApi {
  decltype(&::cuStreamBeginCapture) begin_capture;
  decltype(&::cuStreamEndCapture) end_capture;
  decltype(&::cuGraphInstantiateWithFlags) instantiate;
  decltype(&::cuGraphDestroy) destroy;
  decltype(&::cuGraphLaunch) launch;
  decltype(&::cuGraphExecDestroy) destroy_exec;
};

template <typename Function>
void resolve(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (!function) throw CudaError(std::string("interop: the NVIDIA driver has no ") + symbol + "; update the driver");
}

GraphApi find_api() {
  driver();  // which says what is wrong where there is none
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) throw CudaError("interop: libcuda.so.1 does not load any more");
  GraphApi api{};
  resolve(library, "cuStreamBeginCapture_v2", api.begin_capture);
  resolve(library, "cuStreamEndCapture", api.end_capture);
  resolve(library, "cuGraphInstantiateWithFlags", api.instantiate);
  resolve(library, "cuGraphDestroy", api.destroy);
  resolve(library, "cuGraphLaunch", api.launch);
  resolve(library, "cuGraphExecDestroy", api.destroy_exec);
  return api;
}

const GraphApi& graphs() {
  static const GraphApi api = find_api();
  return api;
}

}  // namespace

void begin_capture(cudaStream_t stream) {
  check(graphs().begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "beginning the capture of a stream");
}

void drop_capture(cudaStream_t stream) noexcept {
  try {
    if (capture_state(stream) == CaptureState::none) return;
    CUgraph graph = nullptr;
    graphs().end_capture(stream, &graph);
    if (graph) graphs().destroy(graph);
  } catch (...) {
    // A driver that has shut down, or a broken context: there is no capture.
  }
}

GraphExec::GraphExec(cudaStream_t stream) {
  CUgraph graph = nullptr;
  check(graphs().end_capture(stream, &graph), "ending the capture of a stream");
  const RelaxedCapture relaxed(driver());
  CUgraphExec exec = nullptr;
  // Libraries may have captured allocations, such as a workspace of cuBLAS, which a replay finds not yet freed.
  const CUresult status = graphs().instantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  graphs().destroy(graph);
  check(status, "instantiating a graph");
  exec_ = exec;
}

GraphExec::~GraphExec() {
  const DriverApi* const api = driver_or_null();
  if (!exec_ || !api) return;
  const RelaxedCapture relaxed(*api);
  graphs().destroy_exec(static_cast<CUgraphExec>(exec_));
}

void GraphExec::launch(cudaStream_t stream) const {
  check(graphs().launch(static_cast<CUgraphExec>(exec_), stream), "launching a graph");
}

}  // namespace interop::cuda
