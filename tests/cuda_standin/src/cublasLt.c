/* The choice of an algorithm: one, which needs no workspace of its own beside the one torch gives it. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic_t; /* cublasLtMatmulHeuristicResult_t */

int standin_cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                           void *preference, int wanted, heuristic_t *results, int *found) {
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *found = 1;
    return 0;
}
size_t standin_cublasLtGetVersion(void) { return 130101; }
int standin_cublasLtGetProperty(int type, int *value) {
    *value = type == 0 ? 13 : type == 1;
    return 0;
}
