/** Size of the terminals' text, in local storage for every tab. */
const storageKey = "terminal-font-px";
export const fontSizes = { min: 9, max: 24, standard: 13 };

export function savedFontSize(storage: Storage = localStorage): number {
  const saved = Number(storage.getItem(storageKey));
  return Number.isInteger(saved) && saved >= fontSizes.min && saved <= fontSizes.max ? saved : fontSizes.standard;
}

export function saveFontSize(px: number, storage: Storage = localStorage): void {
  storage.setItem(storageKey, String(px));
}
