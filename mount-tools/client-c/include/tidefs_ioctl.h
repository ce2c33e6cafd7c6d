// The fast path's ioctls on <mount>/.tidefs/control, version 1. Made of mount-tools/control-api/src/ioctl by
// cbindgen: change that, not this. docs/FASTPATH.md says what each does.
//
// All integers are little-endian, and what a payload holds lies at a multiple of 8 bytes only as far as its structures
// say so: those of variable length follow each other without a gap. A payload has a tidefs_ioctl_header, then one record
// for each entry, and comes back with a header and one result for each.

#ifndef TIDEFS_IOCTL_H
#define TIDEFS_IOCTL_H

#include <stddef.h>
#include <stdint.h>
#include <linux/ioctl.h>
// The number of a request whose payload, the longer of request and reply, has so many bytes.
#define TIDEFS_IOCTL(command, length) _IOC(_IOC_READ | _IOC_WRITE, 0xd7, (command), (length))

// Flag of a request: the records lie in an area, and the results are to be written there; the payload has an
// AreaCall(super::AreaCall) in their place.
#define TIDEFS_IOCTL_FLAG_IN_AREA 1

// Flag of LOOKUP: only says what is there: takes no reference and counts no use. Of GET_INTO: counts no use, since a look-up did. That
// is known to a daemon that offers the feature of that name.
#define TIDEFS_IOCTL_FLAG_PROBE 2

// Flag of RELEASE: the objects were used since they were looked up.
#define TIDEFS_IOCTL_FLAG_USED 4

// Flag of LOOKUP: it waits for no other host. What only others know of is to be asked for by file. Known to a daemon that offers
// the feature of that name.
#define TIDEFS_IOCTL_FLAG_HERE 8

// Flag of a reply: segments are gone that this client may have mapped; RETIRED tells which.
#define TIDEFS_IOCTL_FLAG_RETIRED (1 << 15)

// Feature of a daemon: segments can be mapped, since the kernel serves them by passthrough.
#define TIDEFS_IOCTL_FEATURE_MAPPING 1

// Feature of a daemon: objects can be created, since the kernel can be told of new names.
#define TIDEFS_IOCTL_FEATURE_CREATE 2

// Feature of a daemon: it has READY, FOLLOW and PIN.
#define TIDEFS_IOCTL_FEATURE_FOLLOW 4

// Feature of a daemon: its names clock tells whether what was found under a name still stands there.
#define TIDEFS_IOCTL_FEATURE_CLOCK 8

// Feature of a daemon: a LOOKUP may say that it is to wait for no other host.
#define TIDEFS_IOCTL_FEATURE_HERE 16

// Feature of a daemon: a GET_INTO may say that it counts no use.
#define TIDEFS_IOCTL_FEATURE_PROBE 32

// Mark of an entry that was found: for as long as the names clock does not change, it is what its name stands for.
#define TIDEFS_IOCTL_ENTRY_LASTS 1

// Pin of PIN: none.
#define TIDEFS_IOCTL_PIN_NONE 0

// Pin of PIN: it goes after all others.
#define TIDEFS_IOCTL_PIN_SOFT 1

// Pin of PIN: it does not go.
#define TIDEFS_IOCTL_PIN_HARD 2

// The version of these structures.
#define TIDEFS_IOCTL_ABI_VERSION 1

// Most bytes of one ioctl: 2^14 - 1 is the most that a number of an ioctl can say, rounded down to 8.
#define TIDEFS_IOCTL_PAYLOAD_MAX 16376

// Most entries of a batch in an area: the part of a reference that counts within its batch has 16 bits.
#define TIDEFS_IOCTL_AREA_BATCH_MAX (1 << 16)

// Most bytes that one request or one reply in an area may have.
#define TIDEFS_IOCTL_AREA_REQUEST_MAX (16 << 20)

// Bytes of the segment with the names clock.
#define TIDEFS_IOCTL_CLOCK_BYTES 4096

// Where the names clock counts, a little-endian U64: it changes before anybody who takes away, replaces or forbids something
// that a session holds a reference to, by the name under which it was found, is told that it is done.
#define TIDEFS_IOCTL_CLOCK_CHANGES 0

// Where the names clock beats, a little-endian U64: it changes at least once in CLOCK_BEAT_MS while the daemon lives.
#define TIDEFS_IOCTL_CLOCK_BEAT 8

// Milliseconds after which a names clock that has not beaten says nothing any more.
#define TIDEFS_IOCTL_CLOCK_BEAT_MS 1000

// What an ioctl asks for. The number is the `nr` of its ioctl number.
enum tidefs_ioctl_command
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint8_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // What the daemon speaks and offers.
  TIDEFS_IOCTL_COMMAND_VERSION = 1,
  // Where objects are. Takes a reference to each that is found.
  TIDEFS_IOCTL_COMMAND_LOOKUP = 2,
  // How many of the names, from the first on, are there. Takes no reference.
  TIDEFS_IOCTL_COMMAND_PREFIX = 3,
  // Gives references back.
  TIDEFS_IOCTL_COMMAND_RELEASE = 4,
  // Begins objects: a segment for each, to be written by the client.
  TIDEFS_IOCTL_COMMAND_CREATE = 5,
  // Makes begun objects immutable and visible, each in one step, as rename(2) does.
  TIDEFS_IOCTL_COMMAND_SEAL = 6,
  // Gives begun objects up.
  TIDEFS_IOCTL_COMMAND_ABORT = 7,
  // Asks for objects below memory to be brought into it. Does not wait.
  TIDEFS_IOCTL_COMMAND_PREFETCH = 8,
  // Copies parts of objects into the client's areas.
  TIDEFS_IOCTL_COMMAND_GET_INTO = 9,
  // Makes objects of bytes in the client's areas.
  TIDEFS_IOCTL_COMMAND_PUT_FROM = 10,
  // Gives the client a segment of its own, an area.
  TIDEFS_IOCTL_COMMAND_REGISTER = 11,
  // Takes an area back.
  TIDEFS_IOCTL_COMMAND_UNREGISTER = 12,
  // Which segments that clients met are no more.
  TIDEFS_IOCTL_COMMAND_RETIRED = 13,
  // Says that parts of begun objects are as they will stay, and shows them to who follows them.
  TIDEFS_IOCTL_COMMAND_READY = 14,
  // Waits until a part of one object may be read, which may still be written. Takes a reference to it.
  TIDEFS_IOCTL_COMMAND_FOLLOW = 15,
  // Keeps objects from being evicted, or ends that.
  TIDEFS_IOCTL_COMMAND_PIN = 16,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tidefs_ioctl_command tidefs_ioctl_command;
#else
typedef uint8_t tidefs_ioctl_command;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What became of one entry.
enum tidefs_ioctl_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint16_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done, or found: the rest of the result says where.
  TIDEFS_IOCTL_STATUS_OK = 0,
  // Nothing is there that the caller may see: a miss.
  TIDEFS_IOCTL_STATUS_ABSENT = 1,
  // Sealed, and below memory: PREFETCH, or opening its file, brings it.
  TIDEFS_IOCTL_STATUS_LOADABLE = 2,
  // Sealed and in memory, in no segment that a client may map: GET_INTO, or reading its file, gives its bytes.
  TIDEFS_IOCTL_STATUS_COPY_ONLY = 3,
  // Something is there of which only the file can tell: it is written, or not verified yet, or a directory.
  TIDEFS_IOCTL_STATUS_ASK_BY_FILE = 4,
  // The caller may not.
  TIDEFS_IOCTL_STATUS_DENIED = 5,
  // The name, the range or the reference means nothing.
  TIDEFS_IOCTL_STATUS_INVALID = 6,
  // No room, and nothing that may be evicted for it.
  TIDEFS_IOCTL_STATUS_NO_ROOM = 7,
  // The quota of a directory is full.
  TIDEFS_IOCTL_STATUS_OVER_QUOTA = 8,
  // The session holds as much as one may.
  TIDEFS_IOCTL_STATUS_TOO_MANY = 9,
  // The daemon failed; its log says why.
  TIDEFS_IOCTL_STATUS_FAILED = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tidefs_ioctl_status tidefs_ioctl_status;
#else
typedef uint16_t tidefs_ioctl_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// First in each request and each reply.
typedef struct {
  // ABI_VERSION.
  uint16_t version;
  // Flags.
  uint16_t flags;
  // Number of records, or of results. Of PREFIX's reply: how many of the names are there.
  uint32_t count;
  // Of a request: inode number of the directory to which names are relative; 0 is the root of the mount. Of the replies
  // of LOOKUP, CREATE and FOLLOW: the reference to the first entry; those of the others follow it one by one. Of REGISTER: the
  // length of the area that is wanted. Of UNREGISTER: the segment of the area. Of RETIRED's reply: of how many segments more, any
  // of those that the client met before, the numbers are forgotten.
  uint64_t scope;
} tidefs_ioctl_header;

// Result of LOOKUP, CREATE, PREFETCH, GET_INTO and FOLLOW.
typedef struct {
  // The segment that holds the object.
  uint64_t segment;
  // Which version of the object this is; 0 of one that is only begun.
  uint64_t version;
  // Its length. Of CREATE: how long it may become. Of GET_INTO: how many bytes were copied.
  uint64_t length;
  // Where it starts in the segment, in units of 64 bytes.
  uint32_t offset;
  // Status.
  uint16_t status;
  // Of LOOKUP: ENTRY_LASTS, or 0.
  uint16_t marks;
} tidefs_ioctl_entry;

// Result of SEAL, PUT_FROM, READY and PIN.
typedef struct {
  // The version that is visible now.
  uint64_t version;
  // Status.
  uint16_t status;
  // 0.
  uint16_t reserved[3];
} tidefs_ioctl_outcome;

// The reply of VERSION, behind its header.
typedef struct {
  // The oldest version that the daemon speaks.
  uint16_t oldest;
  // The newest.
  uint16_t newest;
  // Features.
  uint32_t features;
  // Objects shorter than this are packed: they are copied, not mapped.
  uint64_t packed_max;
  // Most bytes of one area.
  uint64_t area_max;
  // Most references that a session may hold.
  uint32_t references_max;
  // Most objects that a session may have begun.
  uint32_t creates_max;
  // Bytes of objects whose references a client may keep back to return them together: they cannot be evicted.
  uint64_t kept_back_max;
  // The segment with the names clock; 0 when there is none.
  uint64_t clock;
} tidefs_ioctl_version_reply;

// Where the records and the results of a batch lie, when they are in an area.
typedef struct {
  // Segment of the area.
  uint64_t area;
  // Where the records start.
  uint64_t request_offset;
  // Their length.
  uint64_t request_length;
  // Where the results go.
  uint64_t reply_offset;
  // Room for them.
  uint64_t reply_length;
} tidefs_ioctl_area_call;

// The reply of REGISTER, behind its header.
typedef struct {
  // Segment of the area.
  uint64_t segment;
  // Its length.
  uint64_t length;
} tidefs_ioctl_area_grant;

// Record of CREATE. A name follows: 2 bytes of length, then its bytes.
typedef struct __attribute__((packed)) {
  uint64_t size;
  uint32_t mode;
} tidefs_ioctl_create;

// Record of RELEASE and ABORT: the first reference and how many. Of SEAL: the reference and the length.
typedef struct {
  uint64_t first;
  uint64_t second;
} tidefs_ioctl_pair;

// Record of GET_INTO. A name follows.
typedef struct {
  uint64_t offset;
  uint64_t length;
  uint64_t area;
  uint64_t target;
} tidefs_ioctl_get;

// Record of PUT_FROM. A name follows.
typedef struct __attribute__((packed)) {
  uint64_t area;
  uint64_t source;
  uint64_t length;
  uint32_t mode;
} tidefs_ioctl_put;

// Record of READY.
typedef struct {
  uint64_t reference;
  uint64_t offset;
  uint64_t length;
} tidefs_ioctl_ready;

// Record of FOLLOW. A name follows.
typedef struct __attribute__((packed)) {
  uint64_t offset;
  uint64_t length;
  uint32_t wait_ms;
} tidefs_ioctl_follow;

// Record of PIN. A name follows.
typedef struct __attribute__((packed)) {
  uint64_t ttl_s;
  uint16_t pin;
} tidefs_ioctl_pin;

#endif  /* TIDEFS_IOCTL_H */
