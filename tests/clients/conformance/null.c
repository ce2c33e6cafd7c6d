// Every function with NULL where it must not be: each says -EINVAL and why, or does nothing. And those that tell of each object
// what became of it. null DIRECTORY

#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tidefs.h>

static int failures;

static void refused(int outcome, const char *word, const char *what) {
    if (outcome != -EINVAL || strstr(tidefs_error_message(), word) == NULL) {
        printf("%s: %d, %s\n", what, outcome, tidefs_error_message());
        failures++;
    }
}

#define REFUSED(word, call) refused(call, word, #call)

static void expect(int holds, const char *what) {
    if (!holds) {
        printf("not so: %s\n", what);
        failures++;
    }
}

#define EXPECT(claim) expect(claim, #claim)

static void *take(void *context, void *start, size_t length) {
    (void)start, (void)length;
    return context;
}

static void leave(void *context, void *registration) { (void)context, (void)registration; }

static pthread_key_t key_of_thread;

// The library's own data of the thread is gone by now.
static void fail_late(void *nothing) {
    (void)nothing;
    tidefs_view *view = NULL;
    EXPECT(tidefs_get(NULL, "a", &view) == -EINVAL && view == NULL);
    EXPECT(tidefs_error_message()[0] == '\0');
}

static void *fail_early(void *nothing) {
    (void)nothing;
    tidefs_view *view = NULL;
    EXPECT(pthread_setspecific(key_of_thread, &key_of_thread) == 0);
    REFUSED("cache", tidefs_get(NULL, "a", &view));
    return NULL;
}

// In a directory in which `a` is an object.
static void each_is_told(const tidefs_cache *cache, const char *directory) {
    const tidefs_object objects[] = {{"b", "bb", 2}, {"a/c", "c", 1}, {"d", "d", 1}}, none = {"../a", "x", 1};
    int outcomes[3];
    int outcome = tidefs_put_each(cache, objects, 3, outcomes);
    EXPECT(outcome < 0 && strstr(tidefs_error_message(), "a/c") != NULL);
    EXPECT(outcomes[0] == TIDEFS_OK && outcomes[1] == outcome && outcomes[2] == TIDEFS_OK);
    REFUSED("../a", tidefs_put_each(cache, &none, 1, outcomes));
    EXPECT(outcomes[0] == -EINVAL);
    EXPECT(tidefs_put_each(cache, NULL, 0, NULL) == TIDEFS_OK);

    // What nobody can read.
    EXPECT(chdir(directory) == 0 && symlink("loop", "loop") == 0);
    const char *keys[] = {"b", "loop", "nowhere", "d"};
    tidefs_view *views[4];
    int found[4];
    EXPECT(tidefs_lookup_each(cache, keys, 4, views, found) == TIDEFS_OK);
    EXPECT(found[0] == TIDEFS_OK && found[1] == -ELOOP && found[2] == TIDEFS_MISS && found[3] == TIDEFS_OK);
    EXPECT(views[0] != NULL && views[1] == NULL && views[2] == NULL && views[3] != NULL);
    EXPECT(tidefs_view_length(views[0]) == 2 && strstr(tidefs_error_message(), "loop") != NULL);
    tidefs_views_release(views, 4);
    EXPECT(tidefs_lookup_many(cache, keys, 4, views) == -ELOOP && views[0] == NULL);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    tidefs_cache *cache = NULL;
    tidefs_view *view = (tidefs_view *)&failures;
    tidefs_writer *writer = (tidefs_writer *)&failures;
    const char *keys[] = {"a", NULL};
    size_t sizes[] = {1, 2}, number = 7;
    tidefs_object nameless = {NULL, "x", 1}, empty = {"a", NULL, 1};

    EXPECT(tidefs_error_message()[0] == '\0');
    REFUSED("directory", tidefs_open(NULL, &cache));
    REFUSED("cache", tidefs_open(argv[1], NULL));
    EXPECT(tidefs_open("/nowhere/at/all", &cache) == -ENOENT && cache == NULL);
    EXPECT(tidefs_open(argv[1], &cache) == TIDEFS_OK && cache != NULL);

    REFUSED("cache", tidefs_get(NULL, "a", &view));
    EXPECT(view == NULL);
    REFUSED("key", tidefs_get(cache, NULL, &view));
    REFUSED("view", tidefs_get(cache, "a", NULL));
    REFUSED("cache", tidefs_wait(NULL, "a", 0, &view));
    REFUSED("key", tidefs_wait(cache, NULL, 0, &view));
    REFUSED("view", tidefs_wait(cache, "a", 0, NULL));
    REFUSED("views", tidefs_lookup_many(cache, keys, 1, NULL));
    REFUSED("keys", tidefs_lookup_many(cache, NULL, 1, &view));
    REFUSED("cache", tidefs_lookup_many(NULL, keys, 1, &view));
    tidefs_view *views[2];
    REFUSED("a key", tidefs_lookup_many(cache, keys, 2, views));
    EXPECT(views[0] == NULL && views[1] == NULL);
    REFUSED("views", tidefs_lookup_many(cache, keys, (size_t)-1, views));
    EXPECT(tidefs_lookup_many(cache, NULL, 0, NULL) == TIDEFS_OK);
    REFUSED("length", tidefs_get_into(cache, "a", NULL, 0, NULL));
    REFUSED("target", tidefs_get_into(cache, "a", NULL, 1, &number));
    EXPECT(number == 0);
    REFUSED("cache", tidefs_get_into(NULL, "a", NULL, 0, &number));
    REFUSED("key", tidefs_get_into(cache, NULL, NULL, 0, &number));
    REFUSED("present", tidefs_prefix(cache, keys, 1, NULL));
    REFUSED("cache", tidefs_prefix(NULL, keys, 1, &number));
    REFUSED("keys", tidefs_prefix(cache, NULL, 1, &number));
    REFUSED("cache", tidefs_wait_range(NULL, "a", 0, 1, 0, &view));
    REFUSED("key", tidefs_wait_range(cache, NULL, 0, 1, 0, &view));
    REFUSED("view", tidefs_wait_range(cache, "a", 0, 1, 0, NULL));
    REFUSED("present", tidefs_pin_many(cache, keys, 1, TIDEFS_PIN_HARD, 0, NULL));
    REFUSED("cache", tidefs_pin_many(NULL, keys, 1, TIDEFS_PIN_HARD, 0, &number));
    REFUSED("keys", tidefs_pin_many(cache, NULL, 1, TIDEFS_PIN_HARD, 0, &number));
    REFUSED("no such pin", tidefs_pin_many(cache, keys, 1, 7, 0, &number));
    REFUSED("cache", tidefs_prefetch(NULL, keys, 1));
    REFUSED("a key", tidefs_prefetch(cache, keys, 2));

    REFUSED("writer", tidefs_create(cache, "a", 1, NULL));
    REFUSED("cache", tidefs_create(NULL, "a", 1, &writer));
    EXPECT(writer == NULL);
    REFUSED("key", tidefs_create(cache, NULL, 1, &writer));
    REFUSED("writers", tidefs_create_many(cache, keys, sizes, 1, NULL));
    REFUSED("sizes", tidefs_create_many(cache, keys, NULL, 1, &writer));
    REFUSED("keys", tidefs_create_many(cache, NULL, sizes, 1, &writer));
    REFUSED("cache", tidefs_create_many(NULL, keys, sizes, 1, &writer));
    REFUSED("writer", tidefs_writer_ready(NULL, 0, 1));
    REFUSED("writer", tidefs_writer_seal(NULL));
    REFUSED("writer", tidefs_writer_seal_first(NULL, 1));
    REFUSED("writers", tidefs_seal_many(cache, NULL, 1));
    tidefs_writer *twice[2] = {NULL, NULL};
    EXPECT(tidefs_create(cache, "twice", 1, &twice[0]) == TIDEFS_OK);
    twice[1] = twice[0];
    REFUSED("a writer", tidefs_seal_many(cache, twice, 2));
    twice[1] = NULL;
    EXPECT(tidefs_seal_many(cache, twice, 2) == TIDEFS_OK);
    writer = NULL;
    REFUSED("cache", tidefs_seal_many(NULL, &writer, 1));
    EXPECT(tidefs_seal_many(cache, &writer, 1) == TIDEFS_OK);
    REFUSED("objects", tidefs_put_many(cache, NULL, 1));
    REFUSED("a key", tidefs_put_many(cache, &nameless, 1));
    REFUSED("bytes", tidefs_put_many(cache, &empty, 1));
    REFUSED("cache", tidefs_set_mode(NULL, 0600));
    REFUSED("cache", tidefs_put(NULL, "a", "x", 1));
    EXPECT(tidefs_put(cache, "a", NULL, 0) == TIDEFS_OK);
    int outcomes[2] = {1, 1};
    REFUSED("outcomes", tidefs_put_each(cache, &nameless, 1, NULL));
    REFUSED("a key", tidefs_put_each(cache, &nameless, 1, outcomes));
    EXPECT(outcomes[0] == -EINVAL && outcomes[1] == 1);
    REFUSED("cache", tidefs_put_each(NULL, &empty, 1, outcomes));
    REFUSED("outcomes", tidefs_lookup_each(cache, keys, 1, views, NULL));
    REFUSED("views", tidefs_lookup_each(cache, keys, 1, NULL, outcomes));
    REFUSED("a key", tidefs_lookup_each(cache, keys, 2, views, outcomes));
    EXPECT(outcomes[1] == -EINVAL);
    each_is_told(cache, argv[1]);
    REFUSED("cache", tidefs_register_with(NULL, take, leave, NULL));
    REFUSED("register_segment", tidefs_register_with(cache, NULL, leave, NULL));
    REFUSED("unregister_segment", tidefs_register_with(cache, take, NULL, NULL));

    EXPECT(tidefs_view_bytes(NULL) == NULL && tidefs_view_length(NULL) == 0 && tidefs_view_version(NULL) == 0);
    EXPECT(!tidefs_view_is_mapped(NULL) && !tidefs_view_is_registered(NULL) && !tidefs_is_fast(NULL));
    EXPECT(tidefs_writer_bytes(NULL) == NULL && tidefs_writer_length(NULL) == 0);
    EXPECT(!tidefs_writer_is_mapped(NULL));
    pthread_t thread;
    EXPECT(pthread_key_create(&key_of_thread, fail_late) == 0);
    EXPECT(pthread_create(&thread, NULL, fail_early, NULL) == 0 && pthread_join(thread, NULL) == 0);
    tidefs_view_release(NULL);
    tidefs_views_release(NULL, 1);
    tidefs_writer_abort(NULL);
    tidefs_flush(NULL);
    tidefs_close(NULL);
    tidefs_close(cache);
    if (failures == 0) printf("ok\n");
    return failures != 0;
}
