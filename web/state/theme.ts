/** Light, dark, or as the system is: kept in the browser, shown by an attribute of the page that the style sheet reads. */
export const themes = ["system", "light", "dark"] as const;
export type Theme = (typeof themes)[number];

const place = "theme";

export function keptTheme(): Theme {
  const kept = localStorage.getItem(place);
  return themes.find((theme) => theme === kept) ?? "system";
}

export function keepTheme(theme: Theme): void {
  localStorage.setItem(place, theme);
}

export function showTheme(theme: Theme): void {
  document.documentElement.dataset.theme = theme;
}
