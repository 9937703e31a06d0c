/** Status codes of libh3av and the error sentence that goes with them. */
#ifndef H3AV_STATUS_H
#define H3AV_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define H3_API __attribute__((visibility("default")))
#else
#define H3_API
#endif

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
    H3_E_CANCELLED = 9,   ///< h3_cancel
    H3_E_NUMERIC = 10,    ///< NaN or infinity where numbers were expected
    H3_E_INTERNAL = 11    ///< a promise of the library was broken; please report
} h3_status;

/** The last sentence recorded on this thread; "" when there is none. Valid until the next failure.
 */
H3_API const char *h3_error(void);

/** A short name of a code, e.g. "format". Never NULL. */
H3_API const char *h3_status_name(h3_status s);

#ifdef __cplusplus
}
#endif

#endif
