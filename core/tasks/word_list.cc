#include "core/tasks/word_list.h"

#include <vector>

namespace tidepool::tasks {
namespace {

constexpr std::string_view kWords =
    "act add age ago aid air all and ant any ape arm art ash ask bad bag bar bat bay bed bee big bin bit "
    "box boy bud bug bus cab can cap car cat cow cup cut day den dog dot dry ear eat egg elm end eye fan "
    "far fig fin fit fly fog fox fun gap gem gum hat hen hop hot ice ink jam jar joy key kid able acid "
    "acre arch area army atom aunt baby back ball band bank barn base bath bean bear beat bell bird blue "
    "boat body bone book boot bowl cake calm camp card cart case cash cave city clay club coal coat code "
    "coin cold corn crew crop dark data dawn deck deep deer desk dish door dove drum duck dust east edge "
    "face fact farm fast fern film fire fish flag flow fold food foot fork form frog fuel game gate gift "
    "goat gold golf good grid hair hall hand harp hawk help herb hill lake actor adult alarm album amber "
    "angle apple arena award badge basic beach bench berry birch black blade blank block bloom board "
    "brain brave bread brick bride bring broad brown brush build cabin cable camel candy cargo carol "
    "chain chair chalk charm chart chess chief child civic claim class clean clear cliff climb clock "
    "cloud coach coast cocoa color coral couch count court cover craft crane cream crowd crown cycle "
    "daily dairy dance delta depth diary dozen draft dream dress drift drive eagle earth elbow empty "
    "equal accent access action active actual afford agency agenda amount animal annual answer anyone "
    "appeal arctic artist aspect autumn badger bakery ballet bamboo banana barley barrel basket battle "
    "beauty beaver before belong better beyond bishop bitter border borrow bottle bottom branch breath "
    "breeze bridge bright bronze bucket budget bundle butter button camera campus candle canyon carbon "
    "carpet castle cattle cellar center cereal change chapel cheese cherry choice church circle ability "
    "academy account achieve acrobat address advance adviser airport alcohol almanac amazing ancient "
    "anxiety apricot archive arrival article athlete attempt average balance balcony banquet bargain "
    "barrier battery bedroom believe beneath benefit bicycle blanket blossom booklet bracket brother "
    "builder cabbage cabinet caliber capital captain caravan careful cartoon century ceramic certain "
    "chamber channel chapter charity chicken chimney circuit citizen climate cluster cottage absolute "
    "accident accurate activity addition adequate aircraft alliance alphabet although ambition ancestor "
    "announce anything appetite aquarium argument attitude audience backbone bacteria balanced baseball "
    "becoming birthday blizzard boundary broccoli building business calendar campaign capacity category "
    "ceremony champion children cinnamon climbing clothing collapse colorful complete computer conclude "
    "consider constant continue contrast corridor creative crescent criminal abundance accompany "
    "accordion adjective admission adventure advertise afternoon agreement alligator allowance ambulance "
    "amusement anonymous apartment apologize architect artichoke assistant astronomy authority available "
    "avalanche awareness backwards badminton banknotes basically beautiful beginning biography blueberry "
    "boulevard breakfast broadcast butterfly calculate carefully celebrate challenge character chemistry "
    "chocolate classical classroom colleague community companion component accessible accomplish "
    "accountant accurately additional admiration adolescent affordable aggressive altogether ambassador "
    "anticipate apparently appearance appreciate artificial assessment assignment assistance associated "
    "assumption atmosphere attachment attraction background basketball benevolent biological blackberry "
    "bookkeeper brilliance calculator centimeter chandelier chimpanzee collection collective commercial "
    "commission commitment comparison compassion completely compliance comprehend";

}  // namespace

std::span<const std::string_view> WordList() {
  static const std::vector<std::string_view> words = [] {
    std::vector<std::string_view> list;
    for (size_t at = 0; at < kWords.size(); at += list.back().size() + 1)
      list.push_back(kWords.substr(at, kWords.find(' ', at) - at));
    return list;
  }();
  return words;
}

}  // namespace tidepool::tasks
