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

typedef enum h3_status {
    H3_OK = 0,
    H3_E_ARG = 1,         ///< an option, request field or argument is wrong
    H3_E_IO = 2,          ///< the system refused: open, read, write, no space
    H3_E_FORMAT = 3,      ///< a file is not what it should be: damaged, foreign, hostile
    H3_E_MISSING = 4,     ///< a needed file, tensor or field is absent
    H3_E_SHAPE = 5,       ///< extents disagree
    H3_E_NOMEM = 6,       ///< memory ran out, or an arena was planned too small
    H3_E_UNSUPPORTED = 7, ///< understood, but this build or machine cannot do it
    H3_E_DEVICE = 8,      ///< a backend library or accelerator failed
    H3_E_CANCELLED = 9,   ///< h3_cancel() or Ctrl-C
    H3_E_NUMERIC = 10,    ///< NaN or infinity where numbers were expected
    H3_E_INTERNAL = 11    ///< a promise of ours was broken; please report
} h3_status;

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
 *  hostile tensor name cannot drive a terminal) and returns `code`. */
h3_status h3_fail(h3_status code, const char *fmt, ...) H3_PRINTF(2, 3);

/** Puts "text: " in front of the recorded sentence; returns `code` unchanged. */
h3_status h3_fail_in(h3_status code, const char *fmt, ...) H3_PRINTF(2, 3);

/** The last sentence recorded on this thread; "" when there is none. Valid until the next failure.
 */
const char *h3_error(void);

/** A short name of a code, e.g. "format". Never NULL. */
const char *h3_status_name(h3_status s);

#endif
