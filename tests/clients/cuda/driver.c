/* A stand-in for the CUDA driver: the calls by which memory of the host is registered, as strict as the driver is about them.
 *
 * Pages are pinned by mlock(2), so that a range which is not mapped fails at both ends of its registration. What a program did
 * wrong is counted, for `stand_in_faults`. STAND_IN_SEGMENTS_MAX: ranges that it takes at most. OLD leaves a function out. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       NOT_REGISTERED = 713 };
enum { PORTABLE = 1, DEVICEMAP = 2, READ_ONLY = 8, READ_ONLY_SUPPORTED = 113, RANGES_MAX = 4096, DEPTH_MAX = 8 };

struct range {
    void *start;
    size_t length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range ranges[RANGES_MAX];
static int is_initialised, retained, registered, read_only, faults;
static int the_context;
static __thread void *current[DEPTH_MAX];
static __thread int depth;

static int fault(int code) {
    __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
    return code;
}

int stand_in_registered(void) { return __atomic_load_n(&registered, __ATOMIC_RELAXED); }
int stand_in_read_only(void) { return __atomic_load_n(&read_only, __ATOMIC_RELAXED); }
int stand_in_retained(void) { return __atomic_load_n(&retained, __ATOMIC_RELAXED); }
int stand_in_faults(void) { return __atomic_load_n(&faults, __ATOMIC_RELAXED) + (depth != 0); }

int cuInit(unsigned flags) {
    is_initialised = 1;
    return flags == 0 ? SUCCESS : fault(INVALID_VALUE);
}

int cuDeviceGet(int *device, int ordinal) {
    if (!is_initialised) return fault(NOT_INITIALIZED);
    if (ordinal != 0) return INVALID_DEVICE;
    *device = 40;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (device != 40 || attribute != READ_ONLY_SUPPORTED) return fault(INVALID_VALUE);
    *value = 1;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device != 40) return fault(INVALID_DEVICE);
    __atomic_add_fetch(&retained, 1, __ATOMIC_RELAXED);
    *context = &the_context;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    if (device != 40 || stand_in_retained() == 0) return fault(INVALID_CONTEXT);
    __atomic_sub_fetch(&retained, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) {
    if (context != &the_context || stand_in_retained() == 0 || depth == DEPTH_MAX) return fault(INVALID_CONTEXT);
    current[depth++] = context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) {
    if (depth == 0) return fault(INVALID_CONTEXT);
    *context = current[--depth];
    return SUCCESS;
}

#ifndef OLD
/* Whether the process may write where a range begins: the kernel says so when it is to put the byte there that is there. */
static int may_write(void *start) {
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], start, 1) != 1) abort();
    int took_it = read(ends[0], start, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return took_it;
}

int cuMemHostRegister_v2(void *start, size_t length, unsigned flags) {
    const char *limit = getenv("STAND_IN_SEGMENTS_MAX");
    if (depth == 0) return fault(INVALID_CONTEXT);
    if ((flags & (PORTABLE | DEVICEMAP)) != (PORTABLE | DEVICEMAP)) return fault(INVALID_VALUE);
    if ((flags & READ_ONLY) == (may_write(start) ? READ_ONLY : 0)) return fault(INVALID_VALUE);
    if (limit != NULL && stand_in_registered() >= atoi(limit)) return OUT_OF_MEMORY;
    if (mlock(start, length) != 0) return fault(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX; i++) {
        if (ranges[i].start == start) faults++;
        if (ranges[i].start == NULL) {
            ranges[i] = (struct range){start, length};
            break;
        }
    }
    registered++;
    read_only += (flags & READ_ONLY) != 0;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
#endif

int cuMemHostUnregister(void *start) {
    if (depth == 0) return fault(INVALID_CONTEXT);
    int result = NOT_REGISTERED;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX && result != SUCCESS; i++) {
        if (ranges[i].start != start) continue;
        /* ENOMEM: it was unmapped before. */
        if (munlock(start, ranges[i].length) != 0) faults++;
        memset(&ranges[i], 0, sizeof ranges[i]);
        registered--;
        result = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result == SUCCESS ? SUCCESS : fault(result);
}

int cuGetErrorName(int error, const char **name) {
    switch (error) {
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    default: *name = "CUDA_ERROR_OTHER";
    }
    return SUCCESS;
}
