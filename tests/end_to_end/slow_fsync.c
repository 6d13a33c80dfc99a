/* Slow storage, to be preloaded: fsync of a file whose path holds SLOW_FSYNC_FILES takes SLOW_FSYNC_SECONDS longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fsync(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length > 0 ? length : 0] = '\0';
  if (strstr(path, getenv("SLOW_FSYNC_FILES"))) usleep((useconds_t)(1e6 * atof(getenv("SLOW_FSYNC_SECONDS"))));
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return real(file);
}
