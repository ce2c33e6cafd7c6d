// Stores some blocks of a chain, finds how much of it is cached, and reads them in place.
//
//     cc roundtrip.c $(pkg-config --cflags --libs tidefs) -o roundtrip && ./roundtrip /mnt/kv/model

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidefs.h>

enum { BLOCKS = 4, BLOCK_BYTES = 1 << 20 };

static void must(int outcome, const char *what) {
    if (outcome != TIDEFS_OK) {
        fprintf(stderr, "%s: %s\n", what, outcome == TIDEFS_MISS ? "not there" : tidefs_error_message());
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    tidefs_cache *cache;
    must(tidefs_open(argv[1], &cache), "open");
    printf("libtidefs %s, %s\n", tidefs_version(), tidefs_is_fast(cache) ? "fast path" : "by file");

    // The last key is one that nobody stores.
    const char *keys[BLOCKS + 1] = {"block-0", "block-1", "block-2", "block-3", "block-4"};
    size_t sizes[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) sizes[i] = BLOCK_BYTES;

    // Memory of the cache, that nobody sees yet: filled in place, then visible, each in one step.
    tidefs_writer *writers[BLOCKS];
    must(tidefs_create_many(cache, keys, sizes, BLOCKS, writers), "create");
    for (int i = 0; i < BLOCKS; i++) {
        memset(tidefs_writer_bytes(writers[i]), 'a' + i, tidefs_writer_length(writers[i]));
    }
    must(tidefs_seal_many(cache, writers, BLOCKS), "seal");

    size_t present;
    must(tidefs_prefix(cache, keys, BLOCKS + 1, &present), "prefix");
    printf("%zu of %d blocks are cached\n", present, BLOCKS + 1);

    tidefs_view *views[BLOCKS + 1];
    must(tidefs_lookup_many(cache, keys, BLOCKS + 1, views), "lookup");
    for (int i = 0; i <= BLOCKS; i++) {
        if (views[i] == NULL) {
            printf("%s: a miss\n", keys[i]);
            continue;
        }
        const char *bytes = tidefs_view_bytes(views[i]);
        printf("%s: %zu bytes of '%c', %s\n", keys[i], tidefs_view_length(views[i]), bytes[BLOCK_BYTES - 1],
               tidefs_view_is_mapped(views[i]) ? "in place" : "a copy");
    }
    tidefs_views_release(views, BLOCKS + 1);
    tidefs_close(cache);
    return 0;
}
