// Loads the library as a plug-in does, gives it back, and says whether it is there still. unload

#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    const char *name = "libtidefs.so.0";
    void *library = dlopen(name, RTLD_NOW);
    if (library == NULL || dlsym(library, "tidefs_open") == NULL) return 2;
    if (dlclose(library) != 0) return 3;
    puts(dlopen(name, RTLD_NOW | RTLD_NOLOAD) != NULL ? "stays" : "gone");
    return 0;
}
