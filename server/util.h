/** Small things of the server: time, random ids, files, base64, JSON reading, its log. */
#ifndef H3AV_SERVER_UTIL_H
#define H3AV_SERVER_UTIL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SRV_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define SRV_JSON               (JSON_COMPACT | JSON_REAL_PRECISION(12)) ///< how clients get JSON

enum { SRV_ID_LEN = 52 }; ///< "video_" + 12 hex of time + 32 random hex + NUL, rounded up

double srv_now(void);      ///< seconds of a clock that never jumps
int64_t srv_unix(void);    ///< seconds since 1970
int64_t srv_unix_ms(void); ///< milliseconds since 1970

/** "video_<ms><random>": sorts by time of creation, 128 random bits make it unguessable. Returns
 *  false when the system has no random numbers. */
bool srv_new_id(char out[SRV_ID_LEN]);
/** Whether `s` has the form of srv_new_id: the only strings from outside that reach a path. */
bool srv_is_id(const char *s);
bool srv_random(void *out, size_t n);

/** Compares without telling by its time how much was right. */
bool srv_same_secret(const char *given, const char *secret);

#define SRV_FNV 0xcbf29ce484222325u
uint64_t srv_fnv(uint64_t h, const void *p, size_t n);

/** malloc'd printf; never NULL. */
char *srv_text(const char *fmt, ...) SRV_PRINTF(1, 2);
char *srv_copy(const char *s); ///< NULL for NULL

/** Is `word` one of the comma separated `list`? Case is ignored. */
bool srv_in_list(const char *list, const char *word);

/* ---- files; all return false with errno set ---- */
bool srv_make_dirs(const char *path); ///< with parents, mode 0700
bool srv_remove_tree(const char *path);
int64_t srv_tree_bytes(const char *path);
bool srv_copy_file(const char *from, const char *to); ///< a hard link where that works
bool srv_sync_dir(const char *path);

/** Decodes standard base64 (blanks and line ends between groups are skipped) into `fd`. Returns the
 *  number of bytes, -1 when the text is no base64, -2 when writing failed (errno). */
int64_t srv_base64_to_fd(const char *text, size_t n, int fd);
/** Standard base64 of n bytes; malloc'd, NULL without memory. */
char *srv_base64(const void *data, size_t n);

/** A PNG, not compressed, of rgb [height, width, 3]; malloc'd, NULL without memory or too large. */
unsigned char *srv_png(const uint8_t *rgb, int width, int height, size_t *n);

/* ---- JSON ---- */
const char *srv_json_str(const json_t *o, const char *key); ///< NULL when absent or no string
int64_t srv_json_int(const json_t *o, const char *key);     ///< 0 when absent
double srv_json_num(const json_t *o, const char *key);      ///< 0 when absent

/* ---- log: one line on stderr, with the time ---- */
void srv_log_quiet(bool is_quiet);
void srv_log(const char *fmt, ...) SRV_PRINTF(1, 2);   ///< what a person should know
void srv_error(const char *fmt, ...) SRV_PRINTF(1, 2); ///< also when quiet

#endif
