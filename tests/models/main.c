/**
 * test_model FOLDER OUT: writes the model that the recipe of FOLDER describes to the new folder
 * OUT, for scripts and for trying things by hand.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "test_models.h"

int main(int argc, char **argv)
{
    if (argc != 3 || mkdir(argv[2], 0777) != 0) {
        fprintf(stderr, "usage: test_model FOLDER OUT, where OUT is not there yet\n");
        return 2;
    }
    test_model_fill(argv[1], argv[2]);
    return 0;
}
