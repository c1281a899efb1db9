"""The language codes of `--language`. sentencex would split text in an unknown language by the rules of English."""

from snugbert.errors import InputError

ISO_639_1 = """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el
    en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu
    ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na
    nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn
    so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
""".split()
# The other codes in the tables of sentencex 1.0.30. Most are Wikipedias.
OTHERS = """
    aae abs ace acm ady ady-cyrl aeb aeb-arab aln als alt ami anp apc arn arq ary arz ast atj avk awa azb ban
    ban-bali bar bat-smg bbc bbc-latn bcc bci bdr be-tarask be-x-old bew bgn bho bjn blk bpy bqi btm bug bug-bugi
    bxr cbk-zam cdo cdo-hant cdo-latn ckb cpx cpx-hans cpx-hant cpx-latn crh crh-cyrl crh-latn csb de-at de-ch
    de-formal dsb dtp dty dua egl eml es-formal ext fit fiu-vro fon frc frp frr fur gag gan gan-hans gan-hant gcf
    gcr gld glk gom gom-deva gom-latn gor gsw guc hak hif hif-latn hke hrx hsb hsn hu-formal hyw iba ike-cans
    ike-latn inh jut kaa kab kbd kbd-cyrl kbp kea kge khw kiu kjh kjp kk-arab kk-cn kk-cyrl kk-kz kk-latn kk-tr knc
    ko-kp koi krc krl ks-arab ksh ksw ku-arab ku-latn kum lad lbe lez lij liv ljp lki lld lmo lrc ltg lua luz lzh
    lzz mad mag mai map-bms mdf mhr min mnc mnc-latn mnc-mong mnw mo mrj ms-arab mui mwl myv mzn nah nan nan-hant
    nan-latn nan-latn-pehoeji nan-latn-tailo nap nds nds-nl nia nl-informal nrf nrm nyn nyo olo pcd pdc pdt pfl pms
    pnt pt-br pwn qug rgn rmy roa-rup roa-tara rsk rue rup ruq ruq-cyrl ruq-latn rut sah scn sdc sdh se-fi se-no
    se-se ses sgs sh-cyrl sh-latn shi shi-latn shy shy-latn sjd skr skr-arab sli sma smn sr-cyrl sr-ec sr-el
    sr-latn srn sro stq sty szl szy tay tcy tet tg-cyrl tg-latn trv tt-cyrl ttj tyv udm ug-arab vec vep vls vmf vmw
    vot vro wls wuu wuu-hans wuu-hant xal xmf yue yue-hans yue-hant zh-classical zh-cn zh-hans zh-hant zh-hk
    zh-min-nan zh-mo zh-my zh-sg zh-tw zh-yue
""".split()
CODES = frozenset([*ISO_639_1, *OTHERS])


def check_language(code: str) -> None:
    """Checks a language code.

    Raises:
        InputError: the code is unknown.
    """
    if code in CODES:
        return
    lowercase = code.lower().replace("_", "-")
    close = next((other for other in (lowercase, lowercase.partition("-")[0]) if other in CODES), None)
    hint = (
        f"Did you mean {close}?"
        if close
        else "Give an ISO 639-1 code, such as en or zh. For a language without a code, use a similar one."
    )
    raise InputError(f"--language {code!r} is not a known language code. {hint}")
