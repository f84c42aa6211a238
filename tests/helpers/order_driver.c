// A driver that runs nothing and tells what is queued: its devices' memory is the host's. A stream is a number; of
// 4096 and above it is being captured, all with the same number of thousands (of 4096) together.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

long syscall(long number, ...);  // which C hides without _GNU_SOURCE

typedef unsigned long long u64;
static u64 next_event = 1, next_stream = 900, users;
static float variable[9];

/// What the main thread does: others let go of what the work has used.
#define TELL(...) (getpid() == syscall(SYS_gettid) ? (printf(__VA_ARGS__), putchar('\n'), fflush(stdout), 0) : 0)

int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int* value, int name, int device) { *value = name == 75 ? 9 : name == 16 ? 1 : 0; return 0; }
/// A context is the number of its device, from 1.
static _Thread_local u64 contexts[64] = {1};
static _Thread_local int depth;
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(u64)(device + 1); return 0; }
int cuCtxGetCurrent(void** context) { *context = (void*)contexts[depth]; return 0; }
int cuCtxGetDevice(int* device) { *device = (int)contexts[depth] - 1; return 0; }
int cuCtxGetId(void* context, u64* id) { *id = context ? (u64)context : contexts[depth]; return 0; }
int cuCtxPushCurrent_v2(void* context) { contexts[++depth] = (u64)context; return 0; }
int cuCtxPopCurrent_v2(void** context) { *context = (void*)contexts[depth--]; return 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return 0; }
int cuPointerGetAttribute(void* value, int name, u64 pointer) { *(int*)value = 0; return 0; }
int cuStreamCreate(u64* stream, unsigned flags) { *stream = next_stream++; return 0; }
int cuStreamGetId(u64 stream, u64* id) { *id = stream; return 0; }
int cuStreamSynchronize(u64 stream) { return TELL("synchronize stream %llu", stream); }
int cuStreamWaitEvent(u64 stream, u64 event, unsigned flags) { return TELL("%llu waits for %llu", stream, event); }
int cuStreamGetCaptureInfo_v2(u64 stream, int* status, u64* id, void** graph, void* nodes, void* count) {
  *status = stream >= 4096;
  if (id) *id = stream / 4096;
  if (graph) *graph = (void*)1;
  return 0;
}
int cuEventCreate(u64* event, unsigned flags) { *event = next_event++; return getenv("NO_EVENTS") ? 2 : 0; }
int cuEventDestroy_v2(u64 event) { return 0; }
int cuEventRecord(u64 event, u64 stream) {
  return getenv("NO_RECORDS") ? 2 : TELL("record %llu on %llu", event, stream);
}
int cuEventQuery(u64 event) { return 600; }
int cuEventSynchronize(u64 event) { return TELL("the host waits for %llu", event); }
int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
  *library = malloc(1);
  return TELL("load");
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) { *kernel = library; return 0; }
int cuLibraryGetGlobal(u64* address, size_t* bytes, void* library, const char* name) {
  *address = (u64)variable;
  *bytes = sizeof variable;
  return strcmp(name, "_ZN4demo6filterE") == 0 ? 0 : 500;
}
int cuLibraryGetManaged(u64* address, size_t* bytes, void* library, const char* name) { return 500; }
int cuKernelGetFunction(void** function, void* kernel) { *function = kernel; return 0; }
int cuKernelGetParamInfo(void* kernel, size_t index, size_t* offset, size_t* size) { *size = 8; return index >= 2; }
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
  return cuKernelGetParamInfo(function, index, offset, size);
}
int cuFuncGetAttribute(int* value, int name, void* function) { *value = 0; return 0; }
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned d,
                   u64 stream, void** parameters, void** extra) {
  return TELL("launch on %llu", stream);
}
int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, u64 stream) {
  memcpy((void*)to, from, bytes);
  return TELL("copy from the host on %llu", stream);
}
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, u64 stream) {
  memcpy((void*)to, (void*)from, bytes);
  return TELL("copy on %llu", stream);
}
int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, u64 stream) {
  memcpy(to, (void*)from, bytes);
  return TELL("copy to the host on %llu", stream);
}
int cuUserObjectCreate(void** object, void* data, void (*destroy)(void*), unsigned count, unsigned flags) {
  *object = (void*)++users;
  return TELL("the graph keeps it");
}
int cuUserObjectRelease(void* object, unsigned count) { return 0; }
int cuGraphRetainUserObject(void* graph, void* object, unsigned count, unsigned flags) { return 0; }
