/**
 * Status codes and the error sentence that goes with them.
 *
 * Every function of the library that can fail returns an h3_status. The line that detects a failure
 * calls h3_fail() once, which records one sentence (names, values, what was expected) for this
 * thread; callers only forward the code with H3_TRY. Nothing below the command line prints or
 * exits.
 */
#ifndef H3_BASE_STATUS_H
#define H3_BASE_STATUS_H

#include <h3av/status.h>

#if defined(__GNUC__)
#define H3_NODISCARD    __attribute__((warn_unused_result))
#define H3_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define H3_NODISCARD
#define H3_PRINTF(f, a)
#endif

#define H3_TRY(expr)                 \
    do {                             \
        const h3_status s_ = (expr); \
        if (s_ != H3_OK) return s_;  \
    } while (0)

/** Records the sentence for this thread (at most 1023 bytes; control characters are escaped, so a
 *  hostile tensor name cannot drive a terminal). Use h3_fail. */
void h3_fail_note(const char *fmt, ...) H3_PRINTF(1, 2);

/** h3_fail(code, "format", ...): records the sentence and is `code`. A macro, so that the compiler
 *  sees which value comes back: paths behind H3_TRY are then known to have succeeded. */
#define h3_fail(code, ...) (h3_fail_note(__VA_ARGS__), (code))

/** Puts "text: " in front of the recorded sentence; returns `code` unchanged. */
h3_status h3_fail_in(h3_status code, const char *fmt, ...) H3_PRINTF(2, 3);

#endif
