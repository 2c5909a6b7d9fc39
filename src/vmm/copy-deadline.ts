/** How long a program that copies or rewrites a file may take before it counts as hanging. */
const baseMs = 120_000;
/** A slow disk that other copies use as well. */
const slowBytesPerSec = 10_000_000;

export function copyDeadlineMs(bytes: number): number {
  return baseMs + Math.ceil((bytes / slowBytesPerSec) * 1_000);
}
