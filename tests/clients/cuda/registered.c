/* registered DIRECTORY DEVICE: registers a cache with the CUDA driver, and looks what that came to.
 *
 * Prints why it could not, or how many segments were registered while some were viewed, how many of them read-only, how many
 * of the views say that they are, and what the stand-in for the driver has left in the end. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidefs.h>

enum { BLOCKS = 4, LENGTH = 1 << 20 };

static int ask(void *driver, const char *name) {
    int (*function)(void) = NULL;
    *(void **)&function = dlsym(driver, name);
    return function == NULL ? -1 : function();
}

static void check(int code, const char *what) {
    if (code == TIDEFS_OK) return;
    fprintf(stderr, "%s: %s\n", what, tidefs_error_message());
    exit(2);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    tidefs_cache *cache;
    check(tidefs_open(arguments[1], &cache), "open");

    char *block = malloc(LENGTH), keys[BLOCKS][16];
    for (int i = 0; i < BLOCKS; i++) {
        snprintf(keys[i], sizeof keys[i], "block-%d", i);
        memset(block, 'a' + i, LENGTH);
        tidefs_writer *writer;
        check(tidefs_create(cache, keys[i], LENGTH, &writer), "create");
        memcpy(tidefs_writer_bytes(writer), block, LENGTH);
        check(tidefs_writer_seal(writer), "seal");
    }
    /* What this process wrote it has mapped to write; what another cache reads is mapped to be read. */
    tidefs_cache *reader;
    check(tidefs_open(arguments[1], &reader), "open");
    int code = tidefs_register_with_cuda(cache, (unsigned)atoi(arguments[2]));
    if (code != TIDEFS_OK) {
        printf("%d: %s\n", code, tidefs_error_message());
        return 0;
    }
    check(tidefs_register_with_cuda(reader, (unsigned)atoi(arguments[2])), "register");

    tidefs_view *views[BLOCKS];
    int marked = 0;
    for (int i = 0; i < BLOCKS; i++) {
        check(tidefs_get(reader, keys[i], &views[i]), "get");
        marked += tidefs_view_is_registered(views[i]);
        if (((const char *)tidefs_view_bytes(views[i]))[LENGTH - 1] != 'a' + i) return 3;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    printf("registered %d, read-only %d, views %d\n", ask(driver, "stand_in_registered"), ask(driver, "stand_in_read_only"),
           marked);
    tidefs_close(cache);
    tidefs_close(reader);
    printf("views after the close %d\n", tidefs_view_is_registered(views[0]));
    tidefs_views_release(views, BLOCKS);
    printf("left %d, contexts %d, faults %d\n", ask(driver, "stand_in_registered"), ask(driver, "stand_in_retained"),
           ask(driver, "stand_in_faults"));
    free(block);
    return 0;
}
