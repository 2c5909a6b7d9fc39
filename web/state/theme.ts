/** Light, dark or system: saved in local storage, applied as an attribute that the style sheet reads. */
export const themes = ["system", "light", "dark"] as const;
export type Theme = (typeof themes)[number];

const storageKey = "theme";

export function savedTheme(): Theme {
  const saved = localStorage.getItem(storageKey);
  return themes.find((theme) => theme === saved) ?? "system";
}

export function saveTheme(theme: Theme): void {
  localStorage.setItem(storageKey, theme);
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset.theme = theme;
}
