/* More of working_driver.c, at whose end it stands: memory that other processes are given, as of cuMemAlloc, whatever it
 * is of, and flags that streams set. */
int cuDeviceGetUuid_v2(void* uuid, int device) {
  memset(uuid, 'u' + device, 16);
  return 0;
}
int cuMemGetAddressRange_v2(Pointer* base, size_t* bytes, Pointer pointer) {
  pthread_mutex_lock(&lock);
  const int i = find((void*)pointer);
  if (i >= 0) *base = (Pointer)blocks[i].start, *bytes = blocks[i].bytes;
  pthread_mutex_unlock(&lock);
  return i < 0 ? INVALID_VALUE : 0;
}
int cuIpcGetMemHandle(void* handle, Pointer pointer) {
  memcpy(handle, &pointer, sizeof pointer);
  return status_of("cuIpcGetMemHandle");
}
int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
  (void)memory, (void)bytes, (void)flags;
  return status_of("cuMemHostRegister");
}
int cuMemHostGetDevicePointer_v2(Pointer* pointer, void* memory, unsigned flags) {
  (void)flags;
  *pointer = (Pointer)memory;
  return 0;
}
struct Write {
  unsigned* address;
  unsigned value;
};
static void run_write(void* arguments) {
  const struct Write* write = arguments;
  *write->address = write->value;
}
int cuStreamWriteValue32_v2(void* stream, Pointer address, unsigned value, unsigned flags) {
  (void)flags;
  note("cuStreamWriteValue32");
  const int status = status_of("cuStreamWriteValue32");
  const struct Write write = {(unsigned*)address, value};
  if (status == 0) stand_in_queue(stream, run_write, &write, sizeof write);
  return status;
}
