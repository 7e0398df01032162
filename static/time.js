// Times in the reader's own zone. The server writes UTC; the local text lives in a shadow root, where a morph of the page
// cannot put it back. Without JavaScript the UTC text stays, and says so by its Z or its place.
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const FULL = { year: "numeric", month: "short", day: "numeric", ...CLOCK };

class QsTime extends HTMLElement {
  static observedAttributes = ["datetime", "form"];
  #shown;

  constructor() {
    super();
    this.#shown = this.attachShadow({ mode: "open" }).appendChild(document.createElement("time"));
  }

  connectedCallback() { this.#show(); }
  attributeChangedCallback() { this.#show(); }

  #show() {
    const at = new Date(this.getAttribute("datetime"));
    if (Number.isNaN(at.getTime())) {
      this.#shown.textContent = this.textContent;
      return;
    }
    const today = new Date().toDateString() === at.toDateString();
    const full = !today || this.getAttribute("form") === "full";
    this.#shown.dateTime = at.toISOString();
    this.#shown.title = at.toISOString();
    this.#shown.textContent = at.toLocaleString(undefined, full ? FULL : CLOCK);
  }
}
customElements.define("qs-time", QsTime);
