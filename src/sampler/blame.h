/** Which intermediate of a forward is the first that holds NaN or infinity: looked for through
 * taps. */
#ifndef H3_SAMPLER_BLAME_H
#define H3_SAMPLER_BLAME_H

#include "dev.h"

enum { H3_BLAME_NAME = 160 };

/** The device's own tap, while another one watches. */
typedef struct h3_blame {
    h3_tap_fn tap;
    void *user;
    struct h3_blame_watch *watch;
} h3_blame;

/** From here to h3_blame_end every tensor that passes a tap is looked at until one is bad; its name
 *  goes to `name` [H3_BLAME_NAME], which stays as it was when all are numbers. Slow: everything is
 *  downloaded. */
h3_blame h3_blame_begin(h3_dev *d, char *name);
void h3_blame_end(h3_dev *d, const h3_blame *b);

#endif
