/* NCCL's logger is variadic, and stable Rust cannot define a variadic function. This one formats the line and hands the
 * finished text to Rust. It uses only its own stack, so any number of threads may call it at once. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 4096 };

/* Defined in logger.rs. */
void railweave_nccl_host_log_line(int level, unsigned long flags, const char *file, int line, const char *text);

void railweave_nccl_host_logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  static const char cut[] = "...";
  char text[TEXT_BYTES];
  va_list values;
  va_start(values, format);
  int length = vsnprintf(text, sizeof text, format ? format : "", values);
  va_end(values);
  if (length < 0) {
    text[0] = '\0';
  } else if ((size_t)length >= sizeof text) {
    memcpy(text + sizeof text - sizeof cut, cut, sizeof cut);
  }
  railweave_nccl_host_log_line(level, flags, file ? file : "", line, text);
}
