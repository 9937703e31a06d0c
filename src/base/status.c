/**
 * One error sentence per thread. Text is escaped when it is recorded, not when it is shown, so that
 * every consumer (terminal, JSON, HTTP) may pass it on.
 */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERROR_BYTES = 1024 };
static _Thread_local char error_text[ERROR_BYTES];

/* Copies with control bytes as \xNN; UTF-8 passes. */
static void escape_into(char *dst, size_t cap, const char *src)
{
    size_t n = 0;

    for (; *src && n + 5 < cap; src++) {
        const unsigned char c = (unsigned char)*src;
        if (c < 0x20 || c == 0x7f)
            n += (size_t)snprintf(dst + n, cap - n, "\\x%02x", c);
        else
            dst[n++] = (char)c;
    }
    dst[n] = '\0';
}

void h3_fail_note(const char *fmt, ...)
{
    char raw[ERROR_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    escape_into(error_text, sizeof error_text, raw);
}

h3_status h3_fail_in(h3_status code, const char *fmt, ...)
{
    char raw[2 * ERROR_BYTES + 2], old[ERROR_BYTES];
    va_list ap;
    int n;

    memcpy(old, error_text, sizeof old);
    va_start(ap, fmt);
    n = vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof raw) snprintf(raw + n, sizeof raw - (size_t)n, ": %s", old);
    escape_into(error_text, sizeof error_text, raw);
    return code;
}

const char *h3_error(void)
{
    return error_text;
}

const char *h3_status_name(h3_status s)
{
    static const char *const names[] = {"ok",      "argument",  "io",      "format",
                                        "missing", "shape",     "memory",  "unsupported",
                                        "device",  "cancelled", "numeric", "internal"};
    return (unsigned)s < sizeof names / sizeof *names ? names[s] : "unknown";
}
