// The map: its photos, and after an answer the fix with its matches as numbered pins.

import { EarthLayer } from "./earth_layer.js";
import { PhotoLayer } from "./photo_layer.js";
import { openPhotoPopup } from "./popup.js";
import { spreadPins } from "./pins.js";
import { metres } from "./text.js";

const CLOSEST_ZOOM = 20;
const ANSWER_ZOOM = 19;
const NEAR_THE_FIX_M = 80;  // matches farther away may be outside the view of a fix
const LEAST_VIEW_M = 150;  // a closer view of a fix among few photos would be empty
const PIN_PX = 28;
const TOUCH_PX = 16;
const CONE_PX = 80;
const CONE_DEG = 60;  // about the field of view of a phone

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

export class MapView {
  /** panel: the element over the map, which must not cover an answer. */
  constructor(element, panel) {
    const moving = !calm.matches;
    this.panel = panel;
    this.map = L.map(element, {
      zoomControl: false, maxZoom: CLOSEST_ZOOM, zoomSnap: 0.5,
      fadeAnimation: moving, zoomAnimation: moving, inertia: moving,
    }).setView([20, 0], 2);
    this.map.attributionControl.setPrefix('<a href="https://leafletjs.com">Leaflet</a>');
    L.control.zoom({ position: "topright" }).addTo(this.map);
    L.control.scale({ position: "bottomright", imperial: false }).addTo(this.map);
    this.map.createPane("photos").style.zIndex = 250;  // above base tiles, below the answer
    this.photoLayer = new PhotoLayer({ pane: "photos", maxZoom: CLOSEST_ZOOM }).addTo(this.map);
    this.answer = L.layerGroup().addTo(this.map);
    this.leaders = L.layerGroup().addTo(this.map);
    this.pins = [];
    this.map.on("zoomend", () => this.placePins());
    this.map.on("click", (event) => this.openPopup(event.latlng, TOUCH_PX));
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target === element) this.openPopup(this.map.getCenter(), Infinity)?.focus();
    });
    dark.addEventListener("change", () => [this.earth, this.photoLayer].forEach((layer) => layer?.redraw()));
    new ResizeObserver(() => this.map.invalidateSize({ animate: false })).observe(element);
  }

  /** Base tiles: their URL, such as https://tiles.example.org/{z}/{x}/{y}.png, and their attribution. */
  setTiles(url, attribution) {
    const text = document.createElement("span");
    text.textContent = attribution ?? `Tiles: ${new URL(url.replace("{s}.", "")).hostname}`;  // Leaflet takes HTML
    this.base?.remove();
    this.earth?.remove();
    this.earth = null;
    const options = { attribution: text.innerHTML, maxZoom: CLOSEST_ZOOM, maxNativeZoom: 19, className: "base" };
    this.base = L.tileLayer(url, options).addTo(this.map);
    this.map.getContainer().classList.add("has-base");
  }

  /** Without base tiles: lines of latitude and longitude, and the land of land.json as soon as `loading` has it. */
  setEarth(loading) {
    if (this.earth) return;
    const earth = new EarthLayer({ maxZoom: CLOSEST_ZOOM, attribution: "Coastline: Natural Earth" }).addTo(this.map);
    this.earth = earth;
    loading.then((land) => earth === this.earth && earth.showLand(land), () => {});  // else the lines alone
  }

  showPhotos(photos) {
    this.photoLayer.show(photos);
  }

  /** box: [west, south, east, north], as in GeoJSON. */
  viewBox([west, south, east, north]) {
    const over180 = west > east ? 360 : 0;
    this.fit(L.latLngBounds([south, west], [north, east + over180]), { animate: false });
  }

  /** Call `tell` with the box [south, west, north, east] in view after every move. */
  onMoved(tell) {
    this.map.on("moveend", () => {
      const [low, high] = [this.map.getBounds().getSouthWest(), this.map.getBounds().getNorthEast()];
      const whole = high.lng - low.lng >= 360;
      const [west, east] = whole ? [-180, 180] : [low.wrap().lng, high.wrap().lng];
      tell([Math.max(low.lat, -90), west, Math.min(high.lat, 90), east]);
    });
  }

  /** `choose(number)` is called when a pin is pressed; numbers start at 1. */
  showFix(fix, choose) {
    this.clear();
    const seen = L.latLngBounds([]);
    if (fix.latlon) {
      const circle = L.circle(fix.latlon, { radius: fix.radius_m, className: "fix-circle", interactive: false });
      seen.extend(circle.addTo(this.answer).getBounds());
    }
    this.middle = fix.latlon;
    this.heading = fix.heading_deg;
    const around = (fix.latlon ?? fix.matches[0]?.latlon ?? [0, 0])[1];
    const feet = fix.matches.map(({ latlon: [lat, lon] }) => [lat, lon - 360 * Math.round((lon - around) / 360)]);
    this.pins = feet.map((latlon, i) => this.makePin(latlon, i + 1, fix, choose));
    for (const latlon of feet) {
      if (!fix.latlon || this.map.distance(latlon, fix.latlon) <= NEAR_THE_FIX_M) seen.extend(latlon);
    }
    if (seen.isValid()) this.fit(seen);
    this.placePins();
  }

  makePin(latlon, number, fix, choose) {
    const away = fix.latlon ? `, ${metres(this.map.distance(latlon, fix.latlon))} from the answer` : "";
    const title = `Match ${number}${away}`;
    const pin = L.marker(latlon, { icon: pinIcon(number), title, riseOnHover: true });
    pin.on("click", () => choose(number));
    pin.addTo(this.answer);
    pin.getElement().setAttribute("aria-label", title);
    pin.getElement().addEventListener("focus", () => choose(number));  // the Tab key steps through the pins
    return pin;
  }

  /** Mark one pin as chosen. */
  choosePin(number) {
    this.chosen = number;
    this.pins.forEach((pin, i) => {
      pin.getElement()?.classList.toggle("chosen", i + 1 === number);
      pin.getElement()?.setAttribute("aria-pressed", String(i + 1 === number));
      pin.setZIndexOffset(i + 1 === number ? 1000 : -10 * i);
    });
    const chosen = this.pins[number - 1].getLatLng();
    if (this.map.getBounds().contains(chosen)) return;
    const seen = L.latLngBounds([chosen]);
    this.fit(this.middle ? seen.extend(this.middle) : seen);
  }

  /** Place the pins so that none covers another at this zoom; a thin line connects each with its photo. */
  placePins() {
    this.leaders.clearLayers();
    const toPixels = (latlon) => {
      const { x, y } = this.map.latLngToLayerPoint(latlon);
      return [x, y];
    };
    const feet = this.pins.map((pin) => toPixels(pin.getLatLng()));
    const keepOff = this.middle ? [toPixels(this.middle)] : [];
    if (this.middle && this.heading != null) {
      const cone = coneOf(keepOff[0], this.heading);
      const corners = cone.map((point) => this.map.layerPointToLatLng(point));
      L.polygon(corners, { className: "cone", interactive: false, smoothFactor: 0 }).addTo(this.leaders);
      keepOff.push(...[0.45, 0.9].map((share) => along(this.heading, share * CONE_PX, keepOff[0])));
    }
    const heads = spreadPins(feet, PIN_PX + 2, keepOff);
    this.pins.forEach((pin, i) => {
      const offset = [heads[i][0] - feet[i][0], heads[i][1] - feet[i][1]];
      const element = pin.getElement();
      element.style.marginLeft = `${offset[0] - PIN_PX / 2}px`;
      element.style.marginTop = `${offset[1] - PIN_PX / 2}px`;
      const line = [feet[i], heads[i]].map((point) => this.map.layerPointToLatLng(point));
      L.polyline(line, { className: "leader", interactive: false }).addTo(this.leaders);
      L.circleMarker(line[0], { radius: 3, className: "leader-foot", interactive: false }).addTo(this.leaders);
    });
    if (!this.middle) return;
    L.circleMarker(this.middle, { radius: 7, className: "fix-point", interactive: false }).addTo(this.leaders);
  }

  clear() {
    this.answer.clearLayers();
    this.leaders.clearLayers();
    this.map.closePopup();
    this.pins = [];
    this.middle = this.heading = null;
  }

  openPopup(latlng, withinPx) {
    const photos = this.photoLayer.near(latlng, withinPx);
    return photos.length ? openPhotoPopup(this.map, photos) : null;
  }

  fit(bounds, options) {
    const [map, panel] = [this.map.getContainer(), this.panel].map((element) => element.getBoundingClientRect());
    const covered = panel.right < map.right ? panel.right - map.left : 0;  // on a phone the panel is below
    const padding = { paddingTopLeft: [covered + 40, 48], paddingBottomRight: [40, 40] };
    const seen = L.latLngBounds(bounds.getSouthWest(), bounds.getNorthEast());
    seen.extend(bounds.getCenter().toBounds(LEAST_VIEW_M));
    this.map.fitBounds(seen, { ...padding, maxZoom: ANSWER_ZOOM, animate: !calm.matches, ...options });
  }
}

/** The corners, in pixels, of what a camera at [x, y] sees that looks to `heading`, degrees clockwise from north. */
function coneOf(camera, heading) {
  const edge = Array.from({ length: 13 }, (_, i) => along(heading + CONE_DEG * (i / 12 - 0.5), CONE_PX, camera));
  return [camera, ...edge];
}

/** The point at this distance in pixels from [x, y], in the direction of `heading`. */
function along(heading, distance, [x, y]) {
  const angle = (heading * Math.PI) / 180;
  return [x + distance * Math.sin(angle), y - distance * Math.cos(angle)];
}

function pinIcon(number) {
  const label = document.createElement("span");
  label.textContent = number;
  return L.divIcon({ className: "pin", html: label, iconSize: [PIN_PX, PIN_PX] });
}
