// Runs the cases of cases.txt through libtidefs.so: driver ROOT CASES. See that file for what is said and answered.

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tidefs.h>

enum { WORDS_MAX = 16, MANY_MAX = 64 };

static char result[4096];
static char place[3000];
static tidefs_cache *cache;
static tidefs_writer *writer;
static tidefs_view *held;

static void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t used = strlen(result);
    vsnprintf(result + used, sizeof result - used, format, arguments);
    va_end(arguments);
}

static unsigned char pattern_at(unsigned seed, size_t at) { return (unsigned char)(seed + 7 * (at % 251)); }

static unsigned char *pattern(unsigned seed, size_t length) {
    unsigned char *bytes = malloc(length + 1);
    if (bytes == NULL) exit(3);
    for (size_t i = 0; i < length; i++) bytes[i] = pattern_at(seed, i);
    return bytes;
}

static uint32_t crc32(const unsigned char *bytes, size_t length) {
    static uint32_t table[256];
    if (table[1] == 0) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t c = n;
            for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
            table[n] = c;
        }
    }
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) crc = table[(crc ^ bytes[i]) & 255] ^ (crc >> 8);
    return ~crc;
}

static void say_bytes(const void *bytes, size_t length) { say("%zu:%08x", length, crc32(bytes, length)); }

static void say_view(tidefs_view *view) {
    if (view == NULL) say("miss");
    else say_bytes(tidefs_view_bytes(view), tidefs_view_length(view));
}

// What a call returned, when that is all there is to say. Returns whether it was.
static int settled(int outcome, const char *when_ok) {
    if (outcome < 0) {
        if (tidefs_error_message()[0] == '\0') say("no message ");
        say("error %d", -outcome);
    } else if (outcome == TIDEFS_MISS) {
        say("miss");
    } else if (when_ok != NULL) {
        say("%s", when_ok);
    }
    return outcome != TIDEFS_OK;
}

static void path_of(char *path, size_t size, const char *key, const char *end) {
    snprintf(path, size, "%s/%s%s", place, key, end);
}

static void by_file(const char *key, unsigned seed, size_t length) {
    char path[4096], temporary[4096];
    path_of(path, sizeof path, key, "");
    path_of(temporary, sizeof temporary, key, ".tmp");
    unsigned char *bytes = pattern(seed, length);
    FILE *file = fopen(temporary, "wb");
    int good = file != NULL && fwrite(bytes, 1, length, file) == length;
    good = file != NULL && fclose(file) == 0 && good && rename(temporary, path) == 0;
    free(bytes);
    if (good) say("ok");
    else say("error %d", errno);
}

static void cat(const char *key) {
    char path[4096];
    struct stat facts;
    path_of(path, sizeof path, key, "");
    FILE *file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &facts) != 0) {
        say("error %d", errno);
        return;
    }
    unsigned char *bytes = malloc((size_t)facts.st_size + 1);
    if (bytes == NULL) exit(3);
    say_bytes(bytes, fread(bytes, 1, (size_t)facts.st_size + 1, file));
    free(bytes);
    fclose(file);
}

static void many(size_t count, size_t length) {
    char names[MANY_MAX][8];
    tidefs_object objects[MANY_MAX];
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "m%zu", i);
        objects[i] = (tidefs_object){names[i], pattern((unsigned)i, length), length};
    }
    settled(tidefs_put_many(cache, objects, count), "ok");
    for (size_t i = 0; i < count; i++) free((void *)objects[i].bytes);
}

static void run(char **words, int count) {
    const char *name = words[0], *key = count > 1 ? words[1] : "";
    const char *const *keys = (const char *const *)words + 1;
    size_t keys_count = (size_t)count - 1;
    unsigned long first = count > 2 ? strtoul(words[2], NULL, 10) : 0;
    unsigned long second = count > 3 ? strtoul(words[3], NULL, 10) : 0;
    tidefs_view *view = NULL;
    if (strcmp(name, "put") == 0) {
        unsigned char *bytes = pattern((unsigned)first, second);
        settled(tidefs_put(cache, key, bytes, second), "ok");
        free(bytes);
    } else if (strcmp(name, "file") == 0) {
        by_file(key, (unsigned)first, second);
    } else if (strcmp(name, "get") == 0 || strcmp(name, "wait") == 0) {
        int outcome = name[0] == 'g' ? tidefs_get(cache, key, &view) : tidefs_wait(cache, key, first, &view);
        if (!settled(outcome, NULL)) say_view(view);
        tidefs_view_release(view);
    } else if (strcmp(name, "cat") == 0) {
        cat(key);
    } else if (strcmp(name, "lookup") == 0) {
        tidefs_view *views[WORDS_MAX];
        if (!settled(tidefs_lookup_many(cache, keys, keys_count, views), NULL)) {
            for (size_t i = 0; i < keys_count; i++) {
                if (i > 0) say(" ");
                say_view(views[i]);
            }
        }
        tidefs_views_release(views, keys_count);
    } else if (strcmp(name, "into") == 0) {
        size_t length;
        unsigned char *target = malloc(first + 1);
        if (target == NULL) exit(3);
        if (!settled(tidefs_get_into(cache, key, target, first, &length), NULL)) {
            say("%zu/", length);
            say_bytes(target, length < first ? length : first);
        }
        free(target);
    } else if (strcmp(name, "prefix") == 0) {
        size_t present;
        if (!settled(tidefs_prefix(cache, keys, keys_count, &present), NULL)) say("%zu", present);
    } else if (strcmp(name, "keep") == 0) {
        int kept = tidefs_keep(cache, strtoul(words[1], NULL, 10));
        if (kept == TIDEFS_MISS) say("no");
        else settled(kept, "yes");
    } else if (strcmp(name, "mode") == 0) {
        int mode = strcmp(key, "none") == 0 ? -1 : (int)strtoul(key, NULL, 8);
        settled(tidefs_set_mode(cache, mode), "ok");
    } else if (strcmp(name, "allowed") == 0) {
        char path[4096];
        struct stat facts;
        path_of(path, sizeof path, key, "");
        if (stat(path, &facts) == 0) say("%o", (unsigned)facts.st_mode & 07777);
        else say("error %d", errno);
    } else if (strcmp(name, "prefetch") == 0) {
        settled(tidefs_prefetch(cache, keys, keys_count), "ok");
    } else if (strcmp(name, "range") == 0) {
        unsigned long limit = strtoul(words[4], NULL, 10);
        if (!settled(tidefs_wait_range(cache, key, first, second, limit, &view), NULL)) say_view(view);
        tidefs_view_release(view);
    } else if (strcmp(name, "pin") == 0) {
        int pin = words[2][0] == 'h' ? TIDEFS_PIN_HARD : words[2][0] == 's' ? TIDEFS_PIN_SOFT : TIDEFS_PIN_NONE;
        size_t present;
        int outcome = tidefs_pin_many(cache, keys, 1, pin, 0, &present);
        if (outcome == TIDEFS_OK && present == 0) outcome = TIDEFS_MISS;
        settled(outcome, "ok");
    } else if (strcmp(name, "ready") == 0) {
        settled(tidefs_writer_ready(writer, strtoul(key, NULL, 10), first), "ok");
    } else if (strcmp(name, "create") == 0) {
        settled(tidefs_create(cache, key, first, &writer), "ok");
    } else if (strcmp(name, "fill") == 0) {
        unsigned char *bytes = tidefs_writer_bytes(writer);
        size_t length = tidefs_writer_length(writer);
        for (size_t i = 0; i < length; i++) bytes[i] = pattern_at((unsigned)strtoul(key, NULL, 10), i);
        say("ok");
    } else if (strcmp(name, "seal") == 0) {
        settled(tidefs_writer_seal(writer), "ok");
    } else if (strcmp(name, "seal_first") == 0) {
        settled(tidefs_writer_seal_first(writer, strtoul(key, NULL, 10)), "ok");
    } else if (strcmp(name, "drop") == 0) {
        tidefs_writer_abort(writer);
        say("ok");
    } else if (strcmp(name, "many") == 0) {
        many(strtoul(key, NULL, 10), first);
    } else if (strcmp(name, "hold") == 0) {
        tidefs_view_release(held);
        if (!settled(tidefs_get(cache, key, &held), NULL)) say_view(held);
    } else if (strcmp(name, "held") == 0) {
        say_view(held);
    } else if (strcmp(name, "place") == 0) {
        if (!settled(tidefs_get(cache, key, &view), NULL)) {
            say(tidefs_view_is_mapped(view) == tidefs_is_fast(cache) ? "in-place" : "elsewhere");
        }
        tidefs_view_release(view);
    } else if (strcmp(name, "unlink") == 0) {
        char path[4096];
        path_of(path, sizeof path, key, "");
        if (unlink(path) == 0) say("ok");
        else say("error %d", errno);
    } else if (strcmp(name, "anew") == 0) {
        int good = 1;
        for (size_t i = 0; i < keys_count; i++) {
            char path[4096];
            path_of(path, sizeof path, keys[i], "");
            good = unlink(path) == 0 && good;
        }
        good = good && rmdir(place) == 0 && mkdir(place, 0777) == 0;
        if (good) say("ok");
        else say("error %d", errno);
    } else if (strcmp(name, "give_way") == 0) {
        char old[4096];
        snprintf(old, sizeof old, "%s.old", place);
        if (rename(place, old) == 0 && mkdir(place, 0777) == 0) say("ok");
        else say("error %d", errno);
    } else {
        say("no such operation");
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    FILE *cases = fopen(argv[2], "r");
    if (cases == NULL) return 2;
    char line[1024];
    while (fgets(line, sizeof line, cases) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '\0' || line[0] == '#') continue;
        if (strncmp(line, "case ", 5) == 0) {
            tidefs_view_release(held);
            held = NULL;
            tidefs_close(cache);
            snprintf(place, sizeof place, "%s/%s", argv[1], line + 5);
            if (tidefs_open(place, &cache) != TIDEFS_OK) {
                fprintf(stderr, "%s: %s\n", place, tidefs_error_message());
                return 1;
            }
            printf("%s\n", line);
            continue;
        }
        char *end = strstr(line, " = ");
        if (end != NULL) *end = '\0';
        printf("%s", line);
        char *words[WORDS_MAX];
        int count = 0;
        for (char *word = strtok(line, " "); word != NULL && count < WORDS_MAX; word = strtok(NULL, " ")) {
            words[count++] = word;
        }
        result[0] = '\0';
        run(words, count);
        printf(" = %s\n", result);
    }
    tidefs_view_release(held);
    tidefs_close(cache);
    fclose(cases);
    return 0;
}
