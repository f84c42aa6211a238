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

enum { NOT_INITIALIZED = 3, INVALID_VALUE = 1, NOT_FOUND = 999, MOST = 4096 };

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
  int pinned;
} blocks[MOST];
static int block_count;

static int find(const void* pointer) {
  for (int i = 0; i < block_count; ++i) {
    if ((char*)pointer >= blocks[i].start && (char*)pointer < blocks[i].start + blocks[i].bytes) return i;
  }
  return -1;
}
static char* add_block(size_t bytes, int pinned) {
  char* start = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  memset(start, 0xA5, bytes);
  pthread_mutex_lock(&lock);
  blocks[block_count++] = (struct Block){start, bytes, pinned};
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
  const int pinned = i >= 0 && blocks[i].pinned;
  pthread_mutex_unlock(&lock);
  return pinned;
}
/* For the test: bytes that are allocated now. */
size_t stand_in_bytes(int pinned) {
  size_t sum = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < block_count; ++i) sum += blocks[i].pinned == pinned ? blocks[i].bytes : 0;
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
  pthread_mutex_t lock;
};
static struct Stream legacy = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct Stream* stream_of(void* handle) { return (size_t)handle <= 2 ? &legacy : handle; }

static void drain(struct Stream* stream) {
  pthread_mutex_lock(&stream->lock);
  while (stream->first < stream->last) {
    struct Task* task = &stream->tasks[stream->first++];
    task->run(task->arguments);
  }
  stream->first = stream->last = 0;
  pthread_mutex_unlock(&stream->lock);
}
/* For the test's C functions, too: runs `run` of a copy of the arguments, in the order of the stream. */
void stand_in_queue(void* handle, void (*run)(void*), const void* arguments, size_t bytes) {
  struct Stream* stream = stream_of(handle);
  if (stream->last == 256) drain(stream);
  pthread_mutex_lock(&stream->lock);
  struct Task* task = &stream->tasks[stream->last++];
  task->run = run;
  memcpy(task->arguments, arguments, bytes);
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
  *value = name == 75 ? 9 : name == 76 ? 0 : 1;
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
  (void)name;
  pthread_mutex_lock(&lock);
  const int i = find((void*)pointer);
  pthread_mutex_unlock(&lock);
  if (i < 0) return INVALID_VALUE;
  *(int*)value = 0;
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
int cuEventCreate(void** event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(void*));
  return 0;
}
int cuEventDestroy_v2(void* event) {
  free(event);
  return 0;
}
int cuEventRecord(void* event, void* stream) {
  note("cuEventRecord");
  *(void**)event = stream_of(stream);
  return 0;
}
static void run_wait(void* arguments) { drain(*(struct Stream**)arguments); }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  (void)flags;
  note("cuStreamWaitEvent");
  if (*(void**)event != stream_of(stream)) stand_in_queue(stream, run_wait, event, sizeof(void*));
  return 0;
}
int cuEventSynchronize(void* event) {
  note("cuEventSynchronize");
  if (*(void**)event) drain(*(void**)event);
  return 0;
}
int cuEventQuery(void* event) {
  note("cuEventQuery");
  if (*(void**)event) drain(*(void**)event);
  return 0;
}
int cuMemAllocAsync(Pointer* pointer, size_t bytes, void* stream) {
  (void)stream;
  char text[64];
  snprintf(text, sizeof text, "cuMemAllocAsync %zu", bytes);
  note(text);
  const int status = status_of("cuMemAllocAsync");
  if (status == 0) *pointer = (Pointer)add_block(bytes, 0);
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
  if (status == 0) *pointer = add_block(bytes, 1);
  return status;
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
