// The structures of tidefs_ioctl.h have the layout that the daemon reads, and VERSION is answered: layout CONTROL

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <tidefs.h>
#include <tidefs_ioctl.h>

static_assert(sizeof(tidefs_ioctl_header) == 16, "header");
static_assert(sizeof(tidefs_ioctl_entry) == 32 && offsetof(tidefs_ioctl_entry, status) == 28, "entry");
static_assert(sizeof(tidefs_ioctl_outcome) == 16 && offsetof(tidefs_ioctl_outcome, status) == 8, "outcome");
static_assert(sizeof(tidefs_ioctl_version_reply) == 48, "version reply");
static_assert(offsetof(tidefs_ioctl_version_reply, kept_back_max) == 32, "version reply");
static_assert(sizeof(tidefs_ioctl_area_call) == 40 && sizeof(tidefs_ioctl_area_grant) == 16, "areas");
static_assert(sizeof(tidefs_ioctl_create) == 12 && sizeof(tidefs_ioctl_pair) == 16, "records");
static_assert(sizeof(tidefs_ioctl_get) == 32 && sizeof(tidefs_ioctl_put) == 28, "records");
static_assert(sizeof(tidefs_ioctl_ready) == 24 && sizeof(tidefs_ioctl_follow) == 20, "records");
static_assert(sizeof(tidefs_ioctl_pin) == 10 && offsetof(tidefs_ioctl_pin, pin) == 8, "records");

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int control = open(argv[1], O_RDWR);
    struct {
        tidefs_ioctl_header header;
        tidefs_ioctl_version_reply reply;
    } payload;
    memset(&payload, 0, sizeof payload);
    payload.header.version = TIDEFS_IOCTL_ABI_VERSION;
    if (ioctl(control, TIDEFS_IOCTL(TIDEFS_IOCTL_COMMAND_VERSION, sizeof payload), &payload) != 0) {
        perror("ioctl");
        return 1;
    }
    int features = 0;
    if (payload.reply.features & TIDEFS_IOCTL_FEATURE_MAPPING) features++;
    if (payload.reply.features & TIDEFS_IOCTL_FEATURE_CREATE) features++;
    if (payload.reply.features & TIDEFS_IOCTL_FEATURE_FOLLOW) features++;
    printf("version %d, %d features\n", payload.reply.newest, features);
    return close(control);
}
