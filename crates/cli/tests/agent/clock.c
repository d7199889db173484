// Shifts the clock of the program that loads this library by the seconds in the file that CLOCK_OFFSET_FILE names.

#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    const char *path = getenv("CLOCK_OFFSET_FILE");
    if (result != 0 || clock != CLOCK_REALTIME || path == NULL) {
        return result;
    }
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        char text[32] = {0};
        if (read(file, text, sizeof text - 1) > 0) {
            time->tv_sec += atol(text);
        }
        close(file);
    }
    return result;
}
