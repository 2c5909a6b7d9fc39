/**
 * Icons as strokes on a grid of 16, hidden from screen readers: each is next to a word or inside a labelled element.
 */
const paths = {
  play: "M5 3.5v9l7-4.5z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  stop: "M4 4h8v8H4z",
  bin: "M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.5 9h6l.5-9M6.8 7v4M9.2 7v4",
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  check: "M3 8.5l3.5 3.5L13 4.5",
  upload: "M8 11V3M4.5 6L8 2.5 11.5 6M3 13.5h10",
  download: "M8 2.5v8M4.5 7.5L8 11l3.5-3.5M3 13.5h10",
  refresh: "M13 8a5 5 0 1 1-1.5-3.6M13 2.5v3h-3",
  folder: "M2 12.5v-9h4l1.5 2H14v7z",
  folderUp: "M2 12.5v-9h4l1.5 2H14v7zM8 11V7.5M6.3 9.2L8 7.5l1.7 1.7",
  file: "M4 1.5h5.5L12.5 5v9.5H4zM9 2v3.5h3.5",
  open: "M9 2.5h4.5V7M13.5 2.5L7.5 8.5M6.5 3.5h-4v10h10v-4",
  globe: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM2 8h12M8 2c-4 4-4 8 0 12M8 2c4 4 4 8 0 12",
  lock: "M3.5 7h9v6.5h-9zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
  link: "M6.5 9.5l3-3M7 4.5l1.5-1.5a2.5 2.5 0 0 1 4 4L11 8.5M9 11.5L7.5 13a2.5 2.5 0 0 1-4-4L5 7.5",
  eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8zM8 6a2 2 0 1 0 0 4 2 2 0 0 0 0-4z",
  layers: "M8 2l6.5 3.5L8 9 1.5 5.5zM1.5 8.5L8 12l6.5-3.5M1.5 11.2L8 14.7l6.5-3.5",
  box: "M8 1.5l5.8 3.2v6.6L8 14.5l-5.8-3.2V4.7zM2.5 4.9L8 8l5.5-3.1M8 8v6",
  key: "M10.5 2.5a3 3 0 1 1-2.6 4.5L3 12v1.5h2V12h1.5v-1.5L8 9",
  gauge: "M2.5 12.5a6 6 0 1 1 11 0M8 9.5l2.5-3.5",
  list: "M5.5 4H14M5.5 8H14M5.5 12H14M2.2 4h.6M2.2 8h.6M2.2 12h.6",
  more: "M3.2 8h.6M7.7 8h.6M12.2 8h.6",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M3.2 12.8l1.1-1.1M11.7 4.3l1.1-1.1",
  moon: "M13 9.5A5.8 5.8 0 1 1 6.5 3 4.8 4.8 0 0 0 13 9.5z",
  screen: "M2 3h12v8H2zM5.5 13.5h5M8 11v2.5",
  exit: "M9.5 2.5h-6v11h6M6.5 8H14M11.5 5.5L14 8l-2.5 2.5",
  warning: "M8 2.2l6.3 11.3H1.7zM8 6.5v3.2M8 11.3v.4",
  terminal: "M2 3h12v10H2zM4.5 6l2 2-2 2M8.5 10.5h3",
  smaller: "M5 11.5L8 5l3 6.5M6.1 9.3h3.8",
  larger: "M3 13L8 2.5 13 13M4.8 9.5h6.4",
  expand: "M9.5 2.5h4v4M6.5 13.5h-4v-4M13.5 2.5L9 7M2.5 13.5L7 9",
  shrink: "M13.5 6.5h-4v-4M2.5 9.5h4v4M9.5 6.5l4-4M6.5 9.5l-4 4",
  pencil: "M3 13l.6-2.8L11 2.8a1.4 1.4 0 0 1 2.1 2.1L5.8 12.4z",
  camera: "M2 5h3l1-2h4l1 2h3v8H2zM8 6.7a2.3 2.3 0 1 0 0 4.6 2.3 2.3 0 0 0 0-4.6z",
} as const;

export type IconName = keyof typeof paths;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={paths[name]} />
    </svg>
  );
}
