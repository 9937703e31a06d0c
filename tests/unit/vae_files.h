/** For the tests of the autoencoders: copies of a checkpoint with tensors left out or changed. */
#ifndef H3_TESTS_VAE_FILES_H
#define H3_TESTS_VAE_FILES_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

/** A folder of our own; remove it with vae_folder_remove. */
static inline char *vae_folder(void)
{
    char *p = h3_strdupf("/tmp/h3av-vae-XXXXXX");
    if (!mkdtemp(p)) abort();
    return p;
}

static inline void vae_write(const char *folder, const char *name, const void *data, size_t n)
{
    char *path = h3_path_join(folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) abort();
    free(path);
}

static inline void vae_folder_remove(char *folder)
{
    static const char *const names[] = {"model.safetensors", "config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = h3_path_join(folder, names[i]);
        (void)unlink(path);
        free(path);
    }
    (void)rmdir(folder);
    free(folder);
}

/**
 * Copies the safetensors file `from` to folder/model.safetensors without the tensors whose names
 * start with `without` (NULL: all stay). If `spoil` is not NULL, the first four bytes of that
 * tensor become 9.0f.
 */
static inline void vae_copy_file(const char *from, const char *folder, const char *without,
                                 const char *spoil)
{
    char *text, *head, *path = h3_path_join(folder, "model.safetensors");
    size_t size, n;
    uint64_t header;
    json_t *j;
    const char *name;
    json_t *one;
    void *next;

    if (h3_file_read(&text, &size, from, (size_t)1 << 30) != H3_OK) abort();
    memcpy(&header, text, 8);
    j = json_loadb(text + 8, (size_t)header, 0, NULL);
    if (!j) abort();
    json_object_foreach_safe(j, next, name, one)
    {
        if (spoil && strcmp(name, spoil) == 0) {
            const float nine = 9.0f;
            memcpy(text + 8 + header +
                       json_integer_value(json_array_get(json_object_get(one, "data_offsets"), 0)),
                   &nine, sizeof nine);
        }
        if (without && strncmp(name, without, strlen(without)) == 0) json_object_del(j, name);
    }
    /* Bytes of tensors that are gone would be a gap, which readers refuse: pack the others anew. */
    FILE *f = fopen(path, "wb");
    int64_t at = 0;
    json_object_foreach(j, name, one)
    {
        json_t *off = json_object_get(one, "data_offsets");
        if (!off) continue;
        const int64_t bytes = (int64_t)(json_integer_value(json_array_get(off, 1)) -
                                        json_integer_value(json_array_get(off, 0)));
        json_object_set_new(one, "was", json_integer(json_integer_value(json_array_get(off, 0))));
        json_object_set_new(one, "data_offsets",
                            json_pack("[I, I]", (json_int_t)at, (json_int_t)(at + bytes)));
        at += bytes;
    }
    json_t *clean = json_deep_copy(j);
    json_object_foreach(clean, name, one) json_object_del(one, "was");
    head = json_dumps(clean, JSON_COMPACT);
    n = strlen(head);
    const uint64_t length = n;
    if (!f || fwrite(&length, 8, 1, f) != 1 || fwrite(head, 1, n, f) != n) abort();
    json_object_foreach(j, name, one)
    {
        const json_t *off = json_object_get(one, "data_offsets");
        if (!off) continue;
        const size_t bytes = (size_t)(json_integer_value(json_array_get(off, 1)) -
                                      json_integer_value(json_array_get(off, 0)));
        if (fwrite(text + 8 + header + json_integer_value(json_object_get(one, "was")), 1, bytes,
                   f) != bytes)
            abort();
    }
    if (fclose(f) != 0) abort();
    json_decref(clean);
    json_decref(j);
    free(head);
    free(path);
    free(text);
}

#endif
