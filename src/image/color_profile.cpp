#include <lcms2.h>

#include <memory>
#include <string_view>
#include <type_traits>

#include "image/decoders.h"

namespace flowshard::image {
namespace {

struct CloseProfile {
  void operator()(void* profile) const { cmsCloseProfile(profile); }
};
using Profile = std::unique_ptr<std::remove_pointer_t<cmsHPROFILE>, CloseProfile>;

struct DeleteTransform {
  void operator()(void* transform) const { cmsDeleteTransform(transform); }
};
using Transform = std::unique_ptr<std::remove_pointer_t<cmsHTRANSFORM>, DeleteTransform>;

bool is_srgb(const Profile& profile) {
  char description[256] = "";
  cmsGetProfileInfoASCII(profile.get(), cmsInfoDescription, "en", "US", description, sizeof(description));
  return std::string_view(description).find("sRGB") != std::string_view::npos;
}

}  // namespace

void convert_to_srgb(Decoded& picture) {
  if (picture.profile.empty()) return;
  const Profile source(
      cmsOpenProfileFromMem(picture.profile.data(), static_cast<cmsUInt32Number>(picture.profile.size())));
  if (!source || cmsGetColorSpace(source.get()) != cmsSigRgbData || is_srgb(source)) return;
  const Profile target(cmsCreate_sRGBProfile());
  const cmsUInt32Number format = picture.channels == 4 ? TYPE_RGBA_8 : TYPE_RGB_8;
  const Transform transform(
      cmsCreateTransform(source.get(), format, target.get(), format, INTENT_PERCEPTUAL, cmsFLAGS_COPY_ALPHA));
  if (!transform) return;
  const auto num_pixels = static_cast<cmsUInt32Number>(picture.pixels.size() / picture.channels);
  cmsDoTransform(transform.get(), picture.pixels.data(), picture.pixels.data(), num_pixels);
}

}  // namespace flowshard::image
