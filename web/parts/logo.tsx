/** The name with the logo, a half-filled capsule. */
export function Logo() {
  return (
    <span class="logo">
      <svg viewBox="0 0 28 14" aria-hidden="true" focusable="false">
        <rect class="logo-whole" x="0" y="0" width="28" height="14" rx="7" />
        <path class="logo-half" d="M14 0h7a7 7 0 0 1 0 14h-7z" />
      </svg>
      Capsule
    </span>
  );
}
