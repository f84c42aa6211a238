/* A driver whose device is the host: libcuda.so.1 for a process of its own, which `helpers.drivers.build_working` builds.
 *
 * What is queued on a stream runs as late as CUDA allows: when somebody waits for it, or a copy of pageable memory does.
 * So memory that is used again too early, or read before it is there, shows in the values. Each call is written down,
 * with what matters of its arguments. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long Pointer;

enum { NOT_INITIALIZED = 3, INVALID_VALUE = 1, NOT_FOUND = 999, NOT_READY = 600, MOST = 4096 };
enum { DEVICE, PINNED, MANAGED }; /* kinds of memory */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];
static size_t log_length;
static pid_t started_in; /* CUDA cannot be used in a forked child */

static void note(const char* text) {
  pthread_mutex_lock(&lock);
  const size_t length = strlen(text);
  if (log_length + length + 2 < sizeof log_text) {
    memcpy(log_text + log_length, text, length);
    log_text[log_length + length] = '\n';
    log_length += length + 1;
    log_text[log_length] = 0;
  }
  pthread_mutex_unlock(&lock);
}

/* For the test: what was called since the last question, a line for each. */
const char* stand_in_log(void) {
  static char copy[sizeof log_text];
  pthread_mutex_lock(&lock);
  memcpy(copy, log_text, log_length + 1);
  log_length = 0;
  log_text[0] = 0;
  pthread_mutex_unlock(&lock);
  return copy;
}

/* For the test: the `after`th next call of this function fails. */
static char failing[64];
static int failing_status, failing_after;
void stand_in_fail(const char* name, int status, int after) {
  snprintf(failing, sizeof failing, "%s", name);
  failing_status = status;
  failing_after = after;
}
static int status_of(const char* name) {
  if (getpid() != started_in) return NOT_INITIALIZED;
  if (strcmp(name, failing) != 0 || --failing_after >= 0) return 0;
  failing[0] = 0;
  return failing_status;
}

/* ---- memory ---- */

static struct Block {
  char* start;
  size_t bytes;
  int kind;
} blocks[MOST];
static int block_count;

static int find(const void* pointer) {
  for (int i = 0; i < block_count; ++i) {
    if ((char*)pointer >= blocks[i].start && (char*)pointer < blocks[i].start + blocks[i].bytes) return i;
  }
  return -1;
}
static char* add_block(size_t bytes, int kind) {
  char* start = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  memset(start, 0xA5, bytes);
  pthread_mutex_lock(&lock);
  blocks[block_count++] = (struct Block){start, bytes, kind};
  pthread_mutex_unlock(&lock);
  return start;
}
static int drop_block(const void* pointer) {
  pthread_mutex_lock(&lock);
  const int i = find(pointer);
  if (i >= 0) {
    memset(blocks[i].start, 0xDD, blocks[i].bytes);
    free(blocks[i].start);
    blocks[i] = blocks[--block_count];
  }
  pthread_mutex_unlock(&lock);
  return i >= 0 ? 0 : INVALID_VALUE;
}
static int is_pinned(const void* pointer) {
  pthread_mutex_lock(&lock);
  const int i = find(pointer);
  const int pinned = i >= 0 && blocks[i].kind == PINNED;
  pthread_mutex_unlock(&lock);
  return pinned;
}
/* For the test: bytes that are allocated now. */
size_t stand_in_bytes(int kind) {
  size_t sum = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < block_count; ++i) sum += blocks[i].kind == kind ? blocks[i].bytes : 0;
  pthread_mutex_unlock(&lock);
  return sum;
}

/* ---- streams ---- */

struct Task {
  void (*run)(void*);
  unsigned char arguments[96];
};
struct Stream {
  struct Task tasks[256];
  int first, last;
  unsigned long long queued, done; /* ever */
  pthread_mutex_t lock;
};
static struct Stream legacy = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct Stream* stream_of(void* handle) { return (size_t)handle <= 2 ? &legacy : handle; }

/* A point in a stream. */
struct Event {
  struct Stream* stream;
  unsigned long long position;
};
static int has_passed(const struct Event* event) {
  return !event->stream || __atomic_load_n(&event->stream->done, __ATOMIC_ACQUIRE) >= event->position;
}
/* What comes before the point is run. A task that waits for another stream may find that this one waits for it, further
 * back, and is the one that runs: that point has passed. */
static void drain_to(const struct Event* event) {
  struct Stream* stream = event->stream;
  if (has_passed(event)) return;
  pthread_mutex_lock(&stream->lock);
  while (!has_passed(event)) {
    struct Task* task = &stream->tasks[stream->first++];
    task->run(task->arguments);
    __atomic_add_fetch(&stream->done, 1, __ATOMIC_RELEASE);
  }
  if (stream->first == stream->last) stream->first = stream->last = 0;
  pthread_mutex_unlock(&stream->lock);
}
static struct Event now(struct Stream* stream) {
  const struct Event event = {stream, __atomic_load_n(&stream->queued, __ATOMIC_ACQUIRE)};
  return event;
}
static void drain(struct Stream* stream) {
  const struct Event event = now(stream);
  drain_to(&event);
}
/* For the test's C functions, too: runs `run` of a copy of the arguments, in the order of the stream. */
void stand_in_queue(void* handle, void (*run)(void*), const void* arguments, size_t bytes) {
  struct Stream* stream = stream_of(handle);
  if (stream->last == 256) drain(stream);
  pthread_mutex_lock(&stream->lock);
  struct Task* task = &stream->tasks[stream->last++];
  task->run = run;
  memcpy(task->arguments, arguments, bytes);
  __atomic_add_fetch(&stream->queued, 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&stream->lock);
}

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};
static void run_copy(void* arguments) {
  const struct Copy* copy = arguments;
  memcpy(copy->to, copy->from, copy->bytes);
}
static int queue_any_copy(const char* name, void* to, const void* from, size_t bytes, void* stream) {
  char text[64];
  snprintf(text, sizeof text, "%s %zu", name, bytes);
  note(text);
  const struct Copy copy = {to, from, bytes};
  pthread_mutex_lock(&lock);
  const int is_pageable = find(to) < 0 || find(from) < 0;
  pthread_mutex_unlock(&lock);
  stand_in_queue(stream, run_copy, &copy, sizeof copy);
  if (is_pageable) drain(stream_of(stream));
  return status_of(name);
}
static int queue_copy(const char* name, void* to, const void* from, const void* host, size_t bytes, void* stream) {
  char text[96];
  const int pinned = is_pinned(host);
  snprintf(text, sizeof text, "%s %zu %s", name, bytes, pinned ? "pinned" : "pageable");
  note(text);
  const int status = status_of(name);
  if (status != 0) return status;
  const struct Copy copy = {to, from, bytes};
  stand_in_queue(stream, run_copy, &copy, sizeof copy);
  if (!pinned) drain(stream_of(stream));
  return 0;
}
static void run_free(void* arguments) { drop_block(*(void**)arguments); }

/* ---- the driver ---- */

int cuInit(unsigned flags) {
  (void)flags;
  started_in = getpid();
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = VERSION;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
int cuGetErrorName(int status, const char** name) {
  *name = status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : status == NOT_INITIALIZED ? "CUDA_ERROR_NOT_INITIALIZED" : "PLAYED";
  return 0;
}
int cuGetErrorString(int status, const char** text) {
  (void)status;
  *text = "played by the stand-in";
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetAttribute(int* value, int name, int device) {
  (void)device;
  const char* major = getenv("STAND_IN_CAPABILITY"); /* of the device: 9.0, unless a test says another one */
  *value = name == 75 ? (major ? atoi(major) : 9) : name == 76 ? 0 : 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  (void)device;
  *context = &legacy;
  return 0;
}
static __thread int depth;
int cuCtxGetCurrent(void** context) {
  *context = depth > 0 ? &legacy : NULL;
  return status_of("cuCtxGetCurrent");
}
int cuCtxGetDevice(int* device) {
  *device = 0;
  return depth > 0 ? status_of("cuCtxGetDevice") : 201;
}
int cuCtxGetId(void* context, unsigned long long* id) {
  (void)context;
  *id = 7;
  return status_of("cuCtxGetId");
}
int cuCtxPushCurrent_v2(void* context) {
  (void)context;
  const int status = status_of("cuCtxPushCurrent");
  depth += status == 0;
  return status;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = &legacy;
  --depth;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  (void)mode;
  return 0;
}
int cuStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph, void** nodes, size_t* n) {
  (void)stream, (void)graph, (void)nodes, (void)n;
  *status = 0;
  if (id) *id = 0;
  return status_of("cuStreamGetCaptureInfo");
}
int cuPointerGetAttribute(void* value, int name, Pointer pointer) {
  pthread_mutex_lock(&lock);
  const int i = find((void*)pointer);
  const int is_managed = i >= 0 && blocks[i].kind == MANAGED;
  const int type = i >= 0 && blocks[i].kind == PINNED ? 1 : 2; /* the host's, or a device's */
  const int is_shareable = i >= 0 && blocks[i].kind == DEVICE;
  pthread_mutex_unlock(&lock);
  if (i < 0) return INVALID_VALUE;
  *(int*)value = name == 8 ? is_managed : name == 2 ? type : name == 10 ? is_shareable : 0;
  return 0;
}
int cuStreamCreate(void** stream, unsigned flags) {
  (void)flags;
  struct Stream* made = calloc(1, sizeof *made);
  pthread_mutex_init(&made->lock, NULL);
  *stream = made;
  return 0;
}
int cuStreamSynchronize(void* stream) {
  note("cuStreamSynchronize");
  const int status = status_of("cuStreamSynchronize");
  if (status == 0) drain(stream_of(stream));
  return status;
}
/* For the test: how many events were ever made. */
static int event_count;
int stand_in_events(void) { return event_count; }
int cuEventCreate(void** event, unsigned flags) {
  (void)flags;
  ++event_count;
  *event = calloc(1, sizeof(struct Event));
  return 0;
}
int cuEventDestroy_v2(void* event) {
  free(event);
  return 0;
}
int cuEventRecord(void* event, void* stream) {
  note("cuEventRecord");
  *(struct Event*)event = now(stream_of(stream));
  return 0;
}
static void run_wait(void* arguments) { drain_to(arguments); }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  (void)flags;
  note("cuStreamWaitEvent");
  const struct Event* const point = event;
  if (point->stream != stream_of(stream)) stand_in_queue(stream, run_wait, point, sizeof *point);
  return 0;
}
int cuEventSynchronize(void* event) {
  note("cuEventSynchronize");
  drain_to(event);
  return 0;
}
/* For the test: an event is asked for while the work before it is not done. */
static int asks_early;
void stand_in_ask_early(int early) { asks_early = early; }
int cuEventQuery(void* event) {
  note("cuEventQuery");
  if (asks_early && !has_passed(event)) return NOT_READY;
  drain_to(event);
  return 0;
}
int cuMemAllocAsync(Pointer* pointer, size_t bytes, void* stream) {
  (void)stream;
  char text[64];
  snprintf(text, sizeof text, "cuMemAllocAsync %zu", bytes);
  note(text);
  const int status = status_of("cuMemAllocAsync");
  if (status == 0) *pointer = (Pointer)add_block(bytes, DEVICE);
  return status;
}
static unsigned long long threshold;
int cuMemPoolCreate(void** pool, const void* properties) {
  (void)properties;
  *pool = &threshold;
  return status_of("cuMemPoolCreate");
}
int cuMemPoolSetAttribute(void* pool, int name, void* value) {
  (void)pool, (void)name;
  threshold = *(unsigned long long*)value;
  return 0;
}
int cuMemPoolGetAttribute(void* pool, int name, void* value) {
  (void)pool;
  *(unsigned long long*)value = name == 4 ? threshold : stand_in_bytes(DEVICE);
  return 0;
}
int cuMemPoolTrimTo(void* pool, size_t keep) {
  (void)pool, (void)keep;
  note("cuMemPoolTrimTo");
  return 0;
}
int cuMemAllocFromPoolAsync(Pointer* pointer, size_t bytes, void* pool, void* stream) {
  (void)pool, (void)stream;
  char text[64];
  snprintf(text, sizeof text, "cuMemAllocFromPoolAsync %zu", bytes);
  note(text);
  const int status = status_of("cuMemAllocFromPoolAsync");
  if (status == 0) *pointer = (Pointer)add_block(bytes, DEVICE);
  return status;
}
int cuMemFreeAsync(Pointer pointer, void* stream) {
  note("cuMemFreeAsync");
  stand_in_queue(stream, run_free, &pointer, sizeof pointer);
  return 0;
}
int cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  (void)flags;
  char text[64];
  snprintf(text, sizeof text, "cuMemHostAlloc %zu", bytes);
  note(text);
  const int status = status_of("cuMemHostAlloc");
  if (status == 0) *pointer = add_block(bytes, PINNED);
  return status;
}
int cuMemAllocManaged(Pointer* pointer, size_t bytes, unsigned flags) {
  (void)flags;
  char text[64];
  snprintf(text, sizeof text, "cuMemAllocManaged %zu", bytes);
  note(text);
  const int status = status_of("cuMemAllocManaged");
  if (status == 0) *pointer = (Pointer)add_block(bytes, MANAGED);
  return status;
}
int cuMemFree_v2(Pointer pointer) {
  note("cuMemFree");
  return drop_block((void*)pointer);
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  (void)device;
  *bytes = (size_t)64 << 20;
  return 0;
}
int cuMemFreeHost(void* pointer) {
  note("cuMemFreeHost");
  return drop_block(pointer);
}
int cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
  return queue_copy("cuMemcpyHtoDAsync", (void*)to, from, from, bytes, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
  return queue_copy("cuMemcpyDtoHAsync", to, (void*)from, to, bytes, stream);
}
int cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, void* stream) {
  return queue_any_copy("cuMemcpyAsync", (void*)to, (void*)from, bytes, stream);
}
int cuMemcpyPeerAsync(Pointer to, void* to_context, Pointer from, void* from_context, size_t bytes, void* stream) {
  (void)to_context, (void)from_context;
  return queue_any_copy("cuMemcpyPeerAsync", (void*)to, (void*)from, bytes, stream);
}
struct Copy2D {
  size_t from_x, from_y;
  int from_type;
  const void* from_host;
  Pointer from_device;
  void* from_array;
  size_t from_pitch, to_x, to_y;
  int to_type;
  void* to_host;
  Pointer to_device;
  void* to_array;
  size_t to_pitch, width, height;
};
int cuMemcpy2DAsync_v2(const struct Copy2D* copy, void* stream) {
  char text[64];
  snprintf(text, sizeof text, "cuMemcpy2DAsync %zu %zu", copy->width, copy->height);
  note(text);
  const int host = 1; /* CU_MEMORYTYPE_HOST */
  char* const to = copy->to_type == host ? copy->to_host : (char*)copy->to_device;
  const char* const from = copy->from_type == host ? copy->from_host : (const char*)copy->from_device;
  for (size_t i = 0; i < copy->height; ++i) {
    const struct Copy row = {to + i * copy->to_pitch, from + i * copy->from_pitch, copy->width};
    stand_in_queue(stream, run_copy, &row, sizeof row);
  }
  drain(stream_of(stream)); /* of pageable memory, as far as the tests go */
  return 0;
}
int cuMemPrefetchAsync(Pointer pointer, size_t bytes, int device, void* stream) {
  (void)pointer, (void)stream;
  char text[64];
  snprintf(text, sizeof text, "cuMemPrefetchAsync %zu %d", bytes, device);
  note(text);
  return 0;
}
int cuMemAdvise(Pointer pointer, size_t bytes, int advice, int device) {
  (void)pointer;
  char text[64];
  snprintf(text, sizeof text, "cuMemAdvise %zu %d %d", bytes, advice, device);
  note(text);
  return 0;
}
