/**
 * A document for xterm.js that keeps to a Content-Security-Policy without 'unsafe-inline'. The policy forbids the text
 * of a <style> element and the attribute `style`; the same rules as a constructed style sheet, and the same
 * declarations set by a script, are allowed. So the elements that xterm makes take these ways instead.
 */
export function strictDocument(): Document {
  return new Proxy(document, {
    get(target, property) {
      if (property === "createElement") return createElement;
      const value: unknown = Reflect.get(target, property, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}

function createElement(name: string): HTMLElement {
  const element = Document.prototype.createElement.call(document, name === "style" ? "template" : name);
  if (name === "style") return sheetBehind(element);
  element.setAttribute = setAttribute;
  return element;
}

/** Its text becomes a style sheet of the document, which goes when the element does. */
function sheetBehind(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  Object.defineProperty(element, "textContent", {
    set(text: string) {
      sheet.replaceSync(text);
      if (!document.adoptedStyleSheets.includes(sheet)) document.adoptedStyleSheets.push(sheet);
    },
  });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

function setAttribute(this: HTMLElement, name: string, value: string): void {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
}

/**
 * Opens something that takes the page's own document for some of its elements although it was given another
 * (xterm.js 6.0 does for the style of its scroll bar): until `open` returns, that one is as strict.
 */
export function strictly(open: () => void): void {
  document.createElement = createElement as Document["createElement"];
  try {
    open();
  } finally {
    Reflect.deleteProperty(document, "createElement");
  }
}
