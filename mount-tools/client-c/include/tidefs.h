// The client library of tidefs in C. Made of mount-tools/client-c/src by cbindgen: change that, not this.
//
// A program links libtidefs.so (pkg-config tidefs), opens a cache, and reads and writes objects in place:
//
//     tidefs_cache *cache;
//     tidefs_view *view;
//     if (tidefs_open("/mnt/kv/model", &cache) != 0) { puts(tidefs_error_message()); exit(1); }
//     if (tidefs_get(cache, "block-17", &view) == TIDEFS_OK) {
//         consume(tidefs_view_bytes(view), tidefs_view_length(view));   // the bytes of the cache themselves
//         tidefs_view_release(view);
//     }
//     tidefs_close(cache);
//
// What each function returns: TIDEFS_OK, or TIDEFS_MISS when an object is not there, or a negative number of errno
// when it failed; tidefs_error_message() then says why. A pointer that may not be NULL and is gives -EINVAL.
// All functions may be called from any thread; one view or writer is used by one thread at a time. A child of
// fork(2) opens its own cache.

#ifndef TIDEFS_H
#define TIDEFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Done.
#define TIDEFS_OK 0

// What was asked for is not in the cache. No failure.
#define TIDEFS_MISS 1

// Pin of tidefs_pin_many: none.
#define TIDEFS_PIN_NONE 0

// Pin of tidefs_pin_many: the object goes after all that are not pinned.
#define TIDEFS_PIN_SOFT 1

// Pin of tidefs_pin_many: the object does not go.
#define TIDEFS_PIN_HARD 2

// An open cache: a directory of a tidefs mount, or any directory.
typedef struct tidefs_cache tidefs_cache;

// The bytes of one object. They do not change, and do not leave the cache, until the view is released.
typedef struct tidefs_view tidefs_view;

// The bytes of an object that nobody sees yet. It becomes visible, whole, when it is sealed. What it holds at first means
// nothing: zeros, or bytes of an object that was there before.
typedef struct tidefs_writer tidefs_writer;

// An object to store: its key and its bytes.
typedef struct {
  // The key.
  const char *key;
  // The bytes; may be NULL when there are none.
  const void *bytes;
  // How many.
  size_t length;
} tidefs_object;

// Registers `length` bytes from `start` on with a device. Returns what tidefs_unregister is to be called with; NULL leaves
// the memory unregistered.
typedef void *(*tidefs_register)(void *context, void *start, size_t length);

// Ends a registration.
typedef void (*tidefs_unregister)(void *context, void *registration);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last function of this thread that failed did so. The text stays until the next one fails; it is empty when
// none did yet. Not to be freed.
const char *tidefs_error_message(void);

// The version of the library, for example "0.1.0". Not to be freed.
const char *tidefs_version(void);

// Opens the cache at `directory`: a mount of tidefs, or a directory below it, for keys relative to that. On another
// filesystem, and where the daemon or the kernel lacks something, all functions do the same by file.
//
// `cache`: where it goes; NULL on a failure.
//
// `directory` is NULL or a text; `cache` is NULL or may be written.
int tidefs_open(const char *directory,
                tidefs_cache **cache);

// Closes a cache. Its views and writers may outlive it. NULL is passed over.
//
// `cache` is NULL or an open cache that no thread uses any more.
void tidefs_close(tidefs_cache *cache);

// Whether objects are mapped; else all is done by file. When the daemon is started again they are not, from the call that finds
// the last one gone to the one that finds the next; this is no such call.
//
// `cache` is NULL or an open cache.
bool tidefs_is_fast(const tidefs_cache *cache);

// The bytes of an object. `view`: where they go; NULL of a miss or a failure.
//
// `cache` is NULL or an open cache, `key` NULL or a text; `view` is NULL or may be written.
int tidefs_get(const tidefs_cache *cache, const char *key, tidefs_view **view);

// The bytes of `count` objects, with one request for many. `views`: room for so many pointers; each that is NULL
// afterwards is a miss. On a failure all are NULL.
//
// `cache` is NULL or an open cache; `keys` has `count` texts; `views` has room for `count` pointers.
int tidefs_lookup_many(const tidefs_cache *cache,
                       const char *const *keys,
                       size_t count,
                       tidefs_view **views);

// As tidefs_lookup_many. `outcomes`: where goes what became of each key, TIDEFS_OK, TIDEFS_MISS or a negative number of errno. An
// object that may not be read fails neither the others nor the function, which returns TIDEFS_OK. Where an argument makes no
// sense, all of them are what the function returns.
//
// As of tidefs_lookup_many; `outcomes` has room for `count` numbers.
int tidefs_lookup_each(const tidefs_cache *cache,
                       const char *const *keys,
                       size_t count,
                       tidefs_view **views,
                       int *outcomes);

// Copies the first bytes of an object to `target`, `capacity` at most. `length`: where the length of the whole object
// goes; 0 of a miss or a failure.
//
// `cache` is NULL or an open cache, `key` NULL or a text; `target` has room for `capacity` bytes; `length` is NULL or may
// be written.
int tidefs_get_into(const tidefs_cache *cache,
                    const char *key,
                    void *target,
                    size_t capacity,
                    size_t *length);

// How many of the keys, from the first on, are there: the longest prefix of a chain that the cache has. `present`: where
// the number goes.
//
// `cache` is NULL or an open cache; `keys` has `count` texts; `present` is NULL or may be written.
int tidefs_prefix(const tidefs_cache *cache,
                  const char *const *keys,
                  size_t count,
                  size_t *present);

// Asks for objects that are below memory to be brought into it. Does not wait; what is not there is passed over.
//
// `cache` is NULL or an open cache; `keys` has `count` texts.
int tidefs_prefetch(const tidefs_cache *cache,
                    const char *const *keys,
                    size_t count);

// Waits until an object is there, `limit_ms` milliseconds at most. `view`: where its bytes go; NULL when it did not come.
//
// As of tidefs_get.
int tidefs_wait(const tidefs_cache *cache,
                const char *key,
                uint64_t limit_ms,
                tidefs_view **view);

// Keeps references to the objects that were looked up last, up to `bytes` bytes of them, when their views are released: who
// looks the same keys up again is answered without the daemon. What is kept cannot be evicted; it is given back after some
// seconds without use. 0 ends it. What is unlinked, replaced or forbidden is seen at once, as without it. TIDEFS_MISS when
// nothing can be kept: without a fast path, or with a daemon that has no names clock.
//
// `cache` is NULL or an open cache.
int tidefs_keep(const tidefs_cache *cache,
                size_t bytes);

// Has objects that are begun or stored from now on get the permissions `mode`, whatever the umask is; of its bits those of
// 0777 count. With a negative number, as before the first call, they get what the umask of their moment leaves, as by open(2): to
// ask for that takes some microseconds for each call that begins or stores by the fast path. What is begun without it gets what
// holds when it is sealed. Directories are made as the umask says.
//
// `cache` is NULL or an open cache.
int tidefs_set_mode(const tidefs_cache *cache,
                    int mode);

// Gives back what views that were released held in the daemon, kept references included. Without it that goes back along with later ones.
//
// `cache` is NULL or an open cache.
void tidefs_flush(const tidefs_cache *cache);

// Waits until a part of an object may be read, `limit_ms` milliseconds at most: of one that is there, or of one that is
// still written and of which that part is ready (tidefs_writer_ready). `view`: where those bytes go, fewer where the
// object ends; NULL when they did not come.
//
// As of tidefs_get.
int tidefs_wait_range(const tidefs_cache *cache,
                      const char *key,
                      size_t offset,
                      size_t length,
                      uint64_t limit_ms,
                      tidefs_view **view);

// Keeps `count` objects from being evicted, or ends that. `pin`: TIDEFS_PIN_NONE, TIDEFS_PIN_SOFT or TIDEFS_PIN_HARD.
// `ttl_s`: seconds for which a soft pin holds; 0 is without an end. `present`: where goes how many of them are there.
//
// `cache` is NULL or an open cache; `keys` has `count` texts; `present` is NULL or may be written.
int tidefs_pin_many(const tidefs_cache *cache,
                    const char *const *keys,
                    size_t count,
                    int pin,
                    uint64_t ttl_s,
                    size_t *present);

// The first byte. It stays where it is until the view is released. NULL of a view that is NULL.
//
// `view` is NULL or a view that was not released.
const void *tidefs_view_bytes(const tidefs_view *view);

// How many bytes there are.
//
// `view` is NULL or a view that was not released.
size_t tidefs_view_length(const tidefs_view *view);

// Which version of the object it is; 0 when only its file knows.
//
// `view` is NULL or a view that was not released.
uint64_t tidefs_view_version(const tidefs_view *view);

// Whether these are the bytes of the cache themselves, not a copy of them.
//
// `view` is NULL or a view that was not released.
bool tidefs_view_is_mapped(const tidefs_view *view);

// Whether a device may read them where they are: see tidefs_register_with.
//
// `view` is NULL or a view that was not released.
bool tidefs_view_is_registered(const tidefs_view *view);

// Ends a view. NULL is passed over.
//
// `view` is NULL or a view that was not released; nobody uses it or its bytes any more.
void tidefs_view_release(tidefs_view *view);

// Ends `count` views. Those that are NULL are passed over, and so is an array that is NULL.
//
// As of tidefs_view_release, for each of them.
void tidefs_views_release(tidefs_view *const *views, size_t count);

// Begins an object of `size` bytes. `writer`: where it goes; NULL on a failure.
//
// `cache` is NULL or an open cache, `key` NULL or a text; `writer` is NULL or may be written.
int tidefs_create(const tidefs_cache *cache, const char *key, size_t size, tidefs_writer **writer);

// Begins `count` objects with one request for many. `writers`: room for so many pointers. On a failure none is begun, and
// all are NULL.
//
// `cache` is NULL or an open cache; `keys` has `count` texts and `sizes` as many numbers; `writers` has room for `count`
// pointers.
int tidefs_create_many(const tidefs_cache *cache,
                       const char *const *keys,
                       const size_t *sizes,
                       size_t count,
                       tidefs_writer **writers);

// The first byte, to be written. It stays where it is until the writer ends. NULL of a writer that is NULL.
//
// `writer` is NULL or a writer that has not ended.
void *tidefs_writer_bytes(tidefs_writer *writer);

// How many bytes there are.
//
// `writer` is NULL or a writer that has not ended.
size_t tidefs_writer_length(const tidefs_writer *writer);

// Whether these are bytes of the cache themselves, which sealing does not copy.
//
// `writer` is NULL or a writer that has not ended.
bool tidefs_writer_is_mapped(const tidefs_writer *writer);

// Says that `length` bytes from `offset` on are as they will stay, and shows them to who waits for them (tidefs_wait_range)
// before the object is sealed. From then on they are not written, and the object is not sealed without them.
//
// `writer` is NULL or a writer that has not ended.
int tidefs_writer_ready(tidefs_writer *writer,
                        size_t offset,
                        size_t length);

// Makes the object visible with its first `length` bytes, in place of what stood under its key, and ends the writer, also
// when it fails: then nothing changed.
//
// `writer` is NULL or a writer that has not ended; nobody uses it or its bytes any more.
int tidefs_writer_seal_first(tidefs_writer *writer,
                             size_t length);

// As tidefs_writer_seal_first, with all bytes.
//
// As of tidefs_writer_seal_first.
int tidefs_writer_seal(tidefs_writer *writer);

// Seals `count` writers with one request for many, and ends them, also when it fails; then it says the first failure
// after all were tried. Those that are NULL are passed over. Where one is given twice nothing is done, and none has ended.
//
// `cache` is NULL or the open cache that they are of; each writer as of tidefs_writer_seal_first.
int tidefs_seal_many(const tidefs_cache *cache,
                     tidefs_writer *const *writers,
                     size_t count);

// Ends a writer without a trace of its object. NULL is passed over.
//
// `writer` is NULL or a writer that has not ended; nobody uses it or its bytes any more.
void tidefs_writer_abort(tidefs_writer *writer);

// Stores `count` objects, the first ones first, each in place of what stood under its key. Each becomes visible whole. They may be
// more than the cache holds: then it has the last of them. After a failure the others are tried all the same; the first one is
// told. With a key that no file can have, nothing is stored.
//
// `cache` is NULL or an open cache; `objects` has `count` of them, each with a text and with bytes that may be read.
int tidefs_put_many(const tidefs_cache *cache,
                    const tidefs_object *objects,
                    size_t count);

// As tidefs_put_many: the first failure is what it returns. `outcomes`: where goes what became of each object, TIDEFS_OK or a
// negative number of errno. Where an argument makes no sense nothing is stored, and all of them are what the function returns.
//
// As of tidefs_put_many; `outcomes` has room for `count` numbers.
int tidefs_put_each(const tidefs_cache *cache,
                    const tidefs_object *objects,
                    size_t count,
                    int *outcomes);

// Stores one object. See tidefs_put_many.
//
// As of tidefs_put_many.
int tidefs_put(const tidefs_cache *cache, const char *key, const void *bytes, size_t length);

// Calls `register_segment` for each segment of memory that is mapped, now and from now on: for cudaHostRegister,
// ibv_reg_mr and the like. `unregister_segment` is called right before a segment is unmapped, which is when the last view
// of it is released and the cache is closed, or the daemon has given the segment up.
//
// While `register_segment` runs no other segment is mapped, and it must not use the cache. Where the cache is not fast
// neither is ever called. A second call replaces the first for segments that are mapped later.
//
// `cache` is NULL or an open cache. Any thread may call the functions with `context` until the cache is closed and all its
// views and writers ended. Neither function throws.
int tidefs_register_with(const tidefs_cache *cache,
                         tidefs_register register_segment,
                         tidefs_unregister unregister_segment,
                         void *context);

// Registers the memory of the cache with an NVIDIA GPU, so that copies to and from it pass by no buffer of the driver: as
// tidefs_register_with does, with cuMemHostRegister, in the primary context of the device with this number and known to all
// contexts of the process. Needs nothing of CUDA but the driver, which is looked for when this is called. What the driver
// refuses stays as it was; tidefs_view_is_registered tells.
//
// Fails with ENOSYS when there is no driver, or an old one, and with ENODEV when it does not give that device.
//
// `cache` is NULL or an open cache.
int tidefs_register_with_cuda(const tidefs_cache *cache,
                              uint32_t device);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TIDEFS_H */
